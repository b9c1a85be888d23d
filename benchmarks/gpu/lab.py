"""Trainings of benchmarks/local_steps on the one device, by processes side by side, for some minutes.

    scripts/gpu --parts lab --lab="--only '*/0.4M/32/4/*' --lines lines.jsonl --text texts"
    python benchmarks/gpu/lab.py --only '*/0.4M/32/4/*' --dry-run     who would do what; no device is needed

Each process carries out whole arms, so that none trains what another one does: it has a list of trials and a file of
lines of its own. Every half a minute, and when the time is over and all are ended, $OUT/lab.jsonl gets the lines of
all, in the order of the list of trials; $OUT/lab.log gets what they say. The time is over before run.py would kill this
part. What lab.jsonl or --lines has is not trained again, whatever the number of processes. Trials `scaled` are left
out: they need the trainings of two arms.
"""

import argparse
import fnmatch
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from checks import Check
from ranks import shared_device

from pliant.network.namespaces import die_with_parent
from pliant.spec.files import write_atomically

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "local_steps"))

from merge_lines import key_of as names_of, merged
from tasc.accuracy_book import read_records
from trials import ADAMW_DDP, LIST, MUON_DDP, Cell, Record, key_of, record

__all__ = ["run", "shares"]

_JOB = Path(__file__).parents[1] / "local_steps"
_KEY = names_of(str(_JOB / "rates.py"))
_ARM = ("optimizer", "algorithm", "size", "windows", "ranks", "decay")
"""What trials have in common that need the same trainings."""
_POLL_S, _MERGE_S = 0.2, 30.0
_END_S = 45.0
"""Time of a part in which this process begins, and ends."""


def run(device: str) -> None:
    """Carry out what run.py has been asked for, within the time that it gives this part."""
    given = _options().parse_args(shlex.split(os.environ.get("PLIANT_GPU_LAB", "")))
    limit_s = float(os.environ.get("PLIANT_GPU_LIMIT_S", "inf"))
    given.minutes = min(given.minutes, (limit_s - _END_S) / 60)
    carry_out(given, device)


def carry_out(given: argparse.Namespace, device: str) -> None:
    """Train for some minutes, and say how far it came."""
    out = Path(os.environ.get("OUT") or "results/gpu")
    trials = asked_for(given, device)
    lists = shares(trials, given.processes)
    if given.dry_run:
        _say_shares(lists)
        return
    out.mkdir(parents=True, exist_ok=True)
    known = [out / "lab.jsonl"] if (out / "lab.jsonl").exists() else []
    before = merged([*([given.lines] if given.lines else []), *known], _KEY, trials)
    begun_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,  # ranks that were killed may still end
        _shared(device) as environment,
        _started(given, device, Path(folder), [(each, before) for each in lists], environment) as processes,
    ):
        parts = [_part(Path(folder), number) for number in range(len(lists))]
        next_s = begun_s + _MERGE_S
        while time.monotonic() < begun_s + 60 * given.minutes and None in [each.poll() for each in processes]:
            time.sleep(_POLL_S)
            if time.monotonic() > next_s:
                _write(out / "lab.jsonl", merged(parts, _KEY, trials))
                next_s += _MERGE_S
        codes = [each.poll() for each in processes]
        for each in processes:
            each.terminate()
            each.wait()
        lines = merged(parts, _KEY, trials)
        said = [path.with_suffix(".log").read_text() for path in parts]
        _write(out / "lab.jsonl", lines)  # before the device is given back, which may fail
        (out / "lab.log").write_text("\n".join(said))
    for number, (code, text) in enumerate(zip(codes, said, strict=True)):
        figure = {None: "the time was over", 0: "it has done all its trials"}.get(code, f"exit code {code}")
        last = "".join(text.strip().splitlines()[-1:])
        Check(name=f"process {number}", figure=figure, bound="no error", passed=not code, note=last).say()
    took_s = sorted(line["wall_s"] for line in lines if line not in before)
    each_s = f", {took_s[len(took_s) // 2]:.1f} s each at the median" if took_s else ""
    figure = f"{len(took_s)} in {(time.monotonic() - begun_s) / 60:.1f} min{each_s}; {len(lines)} lines"
    Check(name="trainings", figure=figure, bound="some", passed=bool(took_s) or not any(codes)).say()


def asked_for(given: argparse.Namespace, device: str) -> list[Record]:
    """Return the trials that are asked for, in their order; small ones where there is no device.

    Raises:
        ValueError: None is called so, or there are no earlier lines where some are said to be.

    """
    if given.lines and not given.lines.exists():
        raise ValueError(f"there is no {given.lines}; give lines of an earlier call, or leave --lines out.")
    trials, patterns = read_records(given.trials), given.only or ["*"]
    if device == "cpu" and given.trials == LIST:
        cell = Cell(size="0.06M", windows=8, ranks=2)
        trials = [{**record("tuned", arm, cell), "steps": 6} for arm in (ADAMW_DDP, MUON_DDP)]
    found = [trial for trial in trials if any(fnmatch.fnmatchcase(key_of(trial), each) for each in patterns)]
    found = [trial for trial in found if trial["kind"] != "scaled"]
    if not found:
        raise ValueError(f"no trial is called {', '.join(patterns)}; they are called as in {key_of(trials[0])}.")
    return found


def shares(trials: Sequence[Record], num: int) -> list[list[Record]]:
    """Divide trials among processes: arms as a whole, the longest first, each to the one that has least to do."""
    arms: dict[tuple[Any, ...], list[Record]] = {}
    for trial in trials:
        arms.setdefault(tuple(trial[name] for name in _ARM), []).append(trial)
    found: list[list[Record]] = [[] for _ in range(num)]
    for arm in sorted(arms.values(), key=_cost_s, reverse=True):
        min(found, key=_cost_s).extend(arm)
    return [sorted(each, key=trials.index) for each in found if each]


def _cost_s(trials: Sequence[Record]) -> float:
    return sum(trial["expected_s"] for trial in trials)


def _say_shares(lists: Sequence[Sequence[Record]]) -> None:
    for number, each in enumerate(lists):
        arms = dict.fromkeys(f"{trial['optimizer']} {trial['arm']}, {trial['ranks']} ranks" for trial in each)
        figure = f"{len(each)} trials, {_cost_s(each) / 60:.0f} min of a CPU's core"
        Check(name=f"process {number}", figure=figure, note="; ".join(arms)).say()


def _part(folder: Path, number: int) -> Path:
    """Return the file of a process's lines; the list of its trials, and what it says, are beside it."""
    return folder / f"part{number}.jsonl"


def _write(path: Path, lines: Sequence[Record]) -> None:
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def _shared(device: str) -> Iterator[Mapping[str, str]]:
    """Share the device; each process has the two work queues that MPS gives it, since many have no room for eight."""
    with shared_device() if device == "cuda" else nullcontext({}) as environment:
        if device == "cuda":
            Check(name="the device is shared", figure="by MPS" if environment else "by slices of time").say()
        yield {name: value for name, value in environment.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}


@contextmanager
def _started(
    given: argparse.Namespace,
    device: str,
    folder: Path,
    shares_and_lines: Sequence[tuple[Sequence[Record], Sequence[Record]]],
    environment: Mapping[str, str],
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start a process for each share, with the lines that there are; end those that are left, and their ranks too."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, (trials, lines) in enumerate(shares_and_lines):
            part = _part(folder, number)
            _write(part, lines)
            _write(part.with_suffix(".trials"), trials)
            words = ["--out", str(part), "--trials", str(part.with_suffix(".trials")), "--device", device]
            command = [sys.executable, str(_JOB / "measure.py"), *words, "--text", given.text]
            own = {**os.environ, **environment, "TMPDIR": str(folder)}  # where an ended process leaves its orders
            with part.with_suffix(".log").open("w") as log:
                dies = die_with_parent(os.getpid())
                processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=log, preexec_fn=dies))
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.wait()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="after which all end, or before run.py ends this")
    parser.add_argument("--processes", type=int, default=4, help="side by side, each with all ranks of a training")
    parser.add_argument("--only", action="append", help="pattern over kind/optimizer/arm/size/...; repeatable")
    parser.add_argument("--trials", type=Path, default=LIST, help="list of trials")
    parser.add_argument("--lines", type=Path, help="lines of earlier calls")
    parser.add_argument("--text", default="", help="folder of text files, as --text of measure.py")
    parser.add_argument("--dry-run", action="store_true", help="say who would do what")
    return parser


if __name__ == "__main__":
    alone = _options()
    alone.add_argument("--device", default="cuda")
    asked = alone.parse_args()
    carry_out(asked, asked.device)
