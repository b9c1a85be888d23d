"""The end of a run that nobody closes: at exit, when nobody holds it any more, and in the middle of an exchange."""

import atexit
import os
import time
import traceback
import warnings
import weakref
from typing import Protocol

from pliant.comm.base import Comm

__all__ = ["Shutdown", "StoppableThread", "abort_start", "warn_destroyed"]

_GRACE_S = 1.0
"""How long an exchange that has begun may still take when its run is broken off: others may be in it."""
_HUNG_UP_S = 5.0
"""How long a thread may take to notice that its connections are broken; it takes milliseconds."""


class StoppableThread(Protocol):
    """Threads that talk through a run's comm."""

    def stop(self) -> None:
        """Begin nothing more. Takes no lock and waits for nobody: a finalizer calls it, in any thread."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, but no longer than this."""
        ...


class Shutdown:
    """Ends a run's threads and connections without communication: what a daemon thread does at exit would abort.

    Note: neither this nor any of the threads may hold the run, its model or its optimizer, or nothing ever ends. What
    holds the run are the hooks of its model and its optimizer, so that a run whose result nobody keeps goes on.

    Args:
        comm: Of the run.

    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self._pid = comm, os.getpid()
        self._threads: weakref.WeakSet[StoppableThread] = weakref.WeakSet()
        self.over = False
        """Whether all has ended."""

    def add(self, thread: StoppableThread) -> None:
        """Note who has threads."""
        self._threads.add(thread)

    def watch(self, run: object) -> None:
        """End when nobody holds the run any more, and at exit."""
        if not _open:
            atexit.unregister(_end_all)
            atexit.register(_end_all)  # last, so that it runs first
        _open.add(self)
        weakref.finalize(run, self._on_collected).atexit = False

    def break_off(self) -> None:
        """Let what has begun end if it soon does, drop the rest, and hang up."""
        if self.over or self._pid != os.getpid():
            return  # a forked process has none of the threads, and shares the sockets
        threads = list(self._threads)
        for thread in threads:
            thread.stop()
        _join_threads(threads, _GRACE_S)
        self.comm.hang_up()
        _join_threads(threads, _HUNG_UP_S)

    def close(self) -> None:
        """Close the comm, and be over."""
        if not self.over and self._pid == os.getpid():
            self.comm.close()
        self.over = True
        _open.discard(self)

    def _on_collected(self) -> None:
        if self.over or self._pid != os.getpid():
            return
        for thread in list(self._threads):
            thread.stop()
        self.comm.hang_up()
        self.close()
        warnings.warn(
            "a run of pliant.relax() was never closed, and its model and optimizer are gone; call close(), or use it "
            "in a with block, so that what is in flight is finished.",
            ResourceWarning,
            stacklevel=2,
        )


def abort_start(comm: Comm) -> None:
    """End what a run that could not begin has opened, its comm included."""
    for shutdown in list(_open):
        if shutdown.comm is comm:
            shutdown.break_off()
            shutdown.close()
    comm.close()


def warn_destroyed(*, left_apart: bool) -> None:
    """Say that destroy_process_group() came before close().

    Raises:
        RuntimeError: What close() does to leave all ranks with the same state was left out.

    """
    what = "destroy_process_group() was called before close(), so this run has only ended what is local"
    if left_apart:
        raise RuntimeError(
            f"{what}: weights or optimizer states that differ between ranks were left as they are; call close(), or "
            "leave the with block, first."
        )
    warnings.warn(f"{what}; call close(), or leave the with block, first.", RuntimeWarning, stacklevel=3)


_open: set[Shutdown] = set()
"""Endings of runs that are open."""


def _join_threads(threads: list[StoppableThread], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


def _end_all() -> None:
    """End what is still open at exit; nothing here may change the exit status."""
    for shutdown in list(_open):
        try:
            shutdown.break_off()
            shutdown.close()
        except Exception:  # noqa: BLE001  the next one must end as well
            traceback.print_exc()
