"""Ranks as processes that are forked from one that has imported everything, so that a trial takes seconds."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pliant.network.namespaces import die_with_parent
from pliant_bench.faults.outcome import Diary, read_diary

__all__ = ["Processes", "end_with_job"]

_STACKS_S = 1.0
_STACK_CHARS = 6000


def end_with_job() -> None:
    """Let the kernel kill this process, which a fork server has made, when its job ends, however that ends.

    The server ends once nobody holds its pipe. It hands that to whatever it forks, so that children, whose parent it
    is, would keep it alive.
    """
    server: Any = forkserver._forkserver  # pyright: ignore[reportPrivateUsage]  nothing public tells of the pipe
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    die_with_parent(os.getppid())()


class Processes:
    """The processes of one training. Used with `with`, after which none is left.

    A rank says what it does in RANK.jsonl of their folder, and, asked by SIGUSR1, where it hangs in RANK.err.
    """

    def __init__(self, process: Callable[..., BaseProcess]) -> None:
        self._process = process
        self._folder = tempfile.TemporaryDirectory()
        self._running: dict[int, BaseProcess] = {}
        self.held = ExitStack()
        """What is kept until the last has ended, such as a port."""

    @property
    def folder(self) -> Path:
        """Folder of what they write."""
        return Path(self._folder.name)

    def launch(self, rank: int, target: Callable[..., None], told: Any) -> None:
        """Start the process of a rank, for the first time or again."""
        self._running[rank] = self._process(target=target, args=(told,), daemon=True)
        self._running[rank].start()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that lives."""
        process = self._running[rank]
        if process.pid is not None and process.exitcode is None:
            os.kill(process.pid, number)

    def diary(self, rank: int) -> Diary:
        """Return what a rank has said so far."""
        return read_diary(self.folder / f"{rank}.jsonl")

    def wait(self, ranks: Sequence[int], within_s: float) -> dict[int, int | None]:
        """Wait for ranks to end; return exit codes, None for who has not ended when the time is up."""
        deadline_s = time.monotonic() + within_s
        for rank in ranks:
            self._running[rank].join(max(0.0, deadline_s - time.monotonic()))
        return {rank: self._running[rank].exitcode for rank in ranks}

    def stacks(self, ranks: Sequence[int]) -> dict[str, str]:
        """Return where ranks are, all threads of each."""
        for rank in ranks:
            self.signal(rank, signal.SIGUSR1)
        time.sleep(_STACKS_S if ranks else 0.0)
        return {str(rank): (self.folder / f"{rank}.err").read_text()[-_STACK_CHARS:] for rank in ranks}

    def end(self) -> None:
        """Kill whoever still runs, stopped or not."""
        for process in self._running.values():
            process.kill()
            process.join()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.held.close()
        self._folder.cleanup()
