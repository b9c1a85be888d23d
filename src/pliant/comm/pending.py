"""Works of torch in flight, which are one communication to the caller."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from pliant.comm.base import CommError
from pliant.comm.progress import Progress

__all__ = ["FailedWork", "PendingWorks", "ReportsFailures", "TorchWork"]


class ReportsFailures(Protocol):
    """A comm over a process group, as far as its works in flight know it."""

    progress: Progress

    @property
    def timeout_s(self) -> float:
        """Longest wait for one communication."""
        ...

    def given_up(self, op: str, error: BaseException, size: str, waited_s: float) -> CommError:
        """Make the report of a failed communication, and close the connections."""
        ...


class TorchWork(Protocol):
    """A `torch.distributed.Work`, as far as it is waited for."""

    def wait(self, timeout: timedelta = ...) -> object:
        """Wait until it is done."""
        ...


class PendingWorks:
    """Works in flight that are one communication to the caller.

    Args:
        comm: Comm that has begun them.
        op: Name of the communication.
        works: The works.
        num_bytes: Bytes that it moves, for messages.
        patience_s: Longest wait in the place of the comm's, for a communication that may never come.
        on_host: Whether tensors are on the host.
        due: Members whose messages were posted before their time, and are awaited once somebody waits.

    """

    def __init__(
        self,
        comm: ReportsFailures,
        op: str,
        works: Sequence[TorchWork],
        num_bytes: int,
        patience_s: float | None = None,
        *,
        on_host: bool = True,
        due: Sequence[int] = (),
    ) -> None:
        self._on_host, self._due = on_host, due
        self._comm, self._op, self._works, self._num_bytes = comm, op, works, num_bytes
        self._limit_s = comm.timeout_s if patience_s is None else patience_s
        self._idle = patience_s is not None
        self._start_s = time.monotonic()
        self._failure: CommError | None = None
        """What has failed, without what it was raised from."""

    def wait(self) -> None:
        if self._failure is not None:
            raise _alike(self._failure)
        waits = self._comm.progress.waits
        if self._due:
            for peer in self._due:
                self._comm.progress.awaits(peer)
            self._due, self._start_s = (), time.monotonic()
        if not self._idle:
            waits.add(id(self))
        try:
            for work in self._works:
                # With a limit NCCL would hold up the host; there the group's own timeout ends what hangs.
                work.wait(timedelta(seconds=self._limit_s)) if self._on_host else work.wait()
        except RuntimeError as error:
            self._works = ()  # they hold connections, and whoever keeps the error would keep them
            waited_s = time.monotonic() - self._start_s
            raise self._given_up(error, waited_s) from error
        finally:  # only now: who is asked meanwhile has waited, and is not to blame
            waits.discard(id(self))
        self._works = ()  # Gloo would wait for ever for what it has already handed over

    def _given_up(self, error: RuntimeError, waited_s: float) -> CommError:
        """Report a failure, and remember it: whoever waits again must not take what never came for done."""
        failure = self._comm.given_up(self._op, error, f" of {self._num_bytes} bytes", waited_s)
        self._failure = _alike(failure)
        return failure

    def let_go(self, error: RuntimeError) -> None:
        """Hold nothing any more of a group that is closed: works keep its connections open. Whoever waits fails."""
        self._works = [FailedWork(error)] if self._works else ()


class FailedWork:
    """A work that has failed before anybody waits, and need not be heard of."""

    def __init__(self, error: RuntimeError) -> None:
        self._error = error

    def wait(self, timeout: timedelta = timedelta()) -> None:
        """Raise what has happened."""
        raise self._error


def _alike(error: CommError) -> CommError:
    """Return an error that says the same, and holds no frame and no cause."""
    return CommError(str(error), rank=error.rank, op=error.op, lost=error.lost)
