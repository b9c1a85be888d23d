"""Start of a command whose Python processes attach Pliant to what they train. No torch."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pliant.attachment import startup
from pliant.attachment.verdict import OTHER_RANK_FILE, RunOptions, RunVerdict

__all__ = ["environment_of", "launch_folder", "read_verdict", "run_command", "speaks_for_all"]

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the command gets in place of this process; a terminal sends SIGINT to both."""


@contextmanager
def launch_folder(options: RunOptions) -> Generator[Path]:
    """Make a folder whose `sitecustomize` attaches Pliant, and remove it on every way out.

    Args:
        options: Options that the processes read there.

    """
    with tempfile.TemporaryDirectory(prefix="pliant-run-") as name:
        folder = Path(name)
        shutil.copyfile(startup.__file__, folder / "sitecustomize.py")
        options.save(folder)
        yield folder


def environment_of(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let Python processes attach Pliant: the folder comes first in PYTHONPATH.

    Args:
        folder: Folder of the run.
        environment: The environment as it is.

    """
    known = environment.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), known)))}


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, hand signals on to it, and return its exit status; 128 and more for a signal.

    Args:
        command: Program and arguments.
        environment: Its whole environment.

    Raises:
        ValueError: There is no such program, or it cannot be run.

    """
    try:
        process = subprocess.Popen([*command], env={**environment})
    except OSError as error:
        raise ValueError(
            f"the command {command[0]!r} cannot be run: {error.strerror}; give a program after --."
        ) from None

    def hand_on(number: int, _: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def speaks_for_all() -> bool:
    """Say whether this process may have the first rank, which alone writes results: not so where torchrun says."""
    return os.environ.get("RANK", "0") == "0"


def read_verdict(folder: Path, *, status: int) -> RunVerdict | None:
    """Return what the script's processes have written, or a verdict that says why there is nothing.

    None where another command has the first rank, which speaks for all: under torchrun and Slurm each rank may have a
    command of its own.

    Args:
        folder: Folder of the run.
        status: Exit status of the command.

    """
    verdict = RunVerdict.load(folder)
    if verdict is None and ((folder / OTHER_RANK_FILE).exists() or not speaks_for_all()):
        return None
    without = folder / "without_pliant"
    if verdict is None and without.exists():
        python = without.read_text(encoding="utf-8")
        verdict = RunVerdict(
            reason=f"The Python that ran the script, {python}, has no Pliant; install it there: {python} -m pip "
            "install pliant."
        )
    if verdict is None:
        verdict = RunVerdict(
            reason="No optimizer has stepped a model in DistributedDataParallel, fully_shard or replicate twice, so "
            "that there was nothing to attach Pliant to; wrap the model, and run Python without -I, -E or -S."
        )
    if status:
        verdict.reason = " ".join(filter(None, (f"The script ended with exit status {status}.", verdict.reason)))
    return verdict
