"""Started ranks: read what they say, wait for them, and when one fails end all, or start it again."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["RankResult", "Restart", "run_ranks"]

_GRACE_S = 5.0
_DRAIN_S = 2.0  # for last words; not for ever, since a process that left its group may still hold the pipe
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """End of one rank."""

    rank: int
    host: str
    exit_code: int
    """Negative for a signal, as in subprocess."""
    ended_by_us: bool
    """Whether it was stopped because another rank had failed, or the time was up."""
    restarts: int = 0
    """How often it had failed before and was started again."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Order that a failed rank does not end the others, and is started again."""

    start: Callable[[int], "subprocess.Popen[str]"]
    restarts: int
    """At most so often for each rank."""


def run_ranks(
    started: Sequence["subprocess.Popen[str]"],
    hosts: Sequence[str],
    on_line: Callable[[int, str], None],
    timeout_s: float,
    again: Restart | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[RankResult]:
    """Wait for started ranks. When one fails (unless `again`), or after timeout_s (0: never), the others are ended.

    Each process leads a process group, which is ended with it. `tick` is called some 50 times a second meanwhile.
    """
    processes, made = list(started), [0] * len(started)
    readers = [_reader(rank, process, on_line) for rank, process in enumerate(processes)]

    def restart(rank: int) -> bool:
        if again is None or made[rank] >= again.restarts:
            return False
        made[rank] += 1
        os.killpg(processes[rank].pid, signal.SIGKILL)  # what it may have left running
        processes[rank].wait()
        on_line(rank, f"failed ({processes[rank].returncode}), and is started again, {made[rank]} of {again.restarts}")
        processes[rank] = again.start(rank)
        readers.append(_reader(rank, processes[rank], on_line))
        return True

    stopped: set[int] = set()
    try:
        _wait(processes, timeout_s, restart, tick, alone=again is not None)
    finally:
        stopped = _end(processes)
        deadline_s = time.monotonic() + _DRAIN_S
        for reader in readers:
            reader.join(max(0.0, deadline_s - time.monotonic()))
    return [
        RankResult(rank=rank, host=host, exit_code=process.wait(), ended_by_us=rank in stopped, restarts=made[rank])
        for rank, (process, host) in enumerate(zip(processes, hosts, strict=True))
    ]


def _reader(rank: int, process: "subprocess.Popen[str]", on_line: Callable[[int, str], None]) -> threading.Thread:
    reader = threading.Thread(target=_read, args=(rank, process, on_line), daemon=True)
    reader.start()
    return reader


def _read(rank: int, process: "subprocess.Popen[str]", on_line: Callable[[int, str], None]) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                on_line(rank, line.rstrip("\n"))


def _exit_code(process: "subprocess.Popen[str]") -> int | None:
    """Return how a process ended, or None; it is left unreaped, so that its number stays its own until its group is."""
    if process.returncode is not None:
        return process.returncode
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # somebody else has reaped it
        return process.poll()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _wait(
    processes: Sequence["subprocess.Popen[str]"],
    timeout_s: float,
    restart: Callable[[int], bool],
    tick: Callable[[], None],
    *,
    alone: bool,
) -> None:
    """Return when all have ended, or a while after one has failed for good and does not fail alone, or in the end."""
    deadline_s = time.monotonic() + timeout_s if timeout_s else float("inf")
    failed = False
    while time.monotonic() < deadline_s:
        tick()
        codes = [_exit_code(process) for process in processes]
        if any(restart(rank) for rank, code in enumerate(codes) if code):
            continue
        if None not in codes:
            return
        if not failed and not alone and any(codes):
            failed = True
            deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)  # the others may still say what they saw
        time.sleep(_POLL_S)


def _end(processes: Sequence["subprocess.Popen[str]"]) -> set[int]:
    """End what still runs, with everything that any rank started; return which ranks still ran."""
    running = {rank for rank, process in enumerate(processes) if _exit_code(process) is None}
    try:
        for rank in running:
            os.killpg(processes[rank].pid, signal.SIGTERM)
        deadline_s = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline_s and any(_exit_code(processes[rank]) is None for rank in running):
            time.sleep(_POLL_S)
    finally:  # also when a second Ctrl-C cuts the wait short
        for process in processes:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return running
