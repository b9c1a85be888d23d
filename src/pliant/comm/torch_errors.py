"""Errors of communication that torch does itself for a model, explained by the rank that is lost."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from pliant.comm.base import CommError
from pliant.comm.process_group import ProcessGroupComm

__all__ = ["Explain", "Report", "error_reporter", "report_nothing", "watched"]

Report = Callable[[BaseException, str, float | None], CommError | None]
"""Function of an error, what failed and its seconds, which returns a report that names the lost rank, or None."""

Explain = Callable[[RuntimeError, str, float], RuntimeError | None]
"""Returns the error to raise for one of torch, of what and after how many seconds; None for torch's own."""

_SIGN = "gloo/"
"""Part of each of Gloo's errors: they begin with the file that they come from."""


def error_reporter(comm: ProcessGroupComm) -> Report:
    """Return a function that explains errors of torch's own communication by the lost rank; it does not hold the comm.

    It returns None if all ranks are alive, or if the error is not one of communication: torch's own then says more.

    Args:
        comm: Comm of the same ranks, whose heartbeats tell who is lost.

    """
    failure = weakref.WeakMethod(comm.failure)

    def report(error: BaseException, op: str, waited_s: float | None = None) -> CommError | None:
        explain = failure()
        if explain is None or not _is_of_communication(error):
            return None
        found = explain(op, error, "", waited_s)
        return found if found.lost else None

    return report


def report_nothing(error: BaseException, op: str, waited_s: float | None = None) -> CommError | None:
    """Return None: nobody is known to be lost."""
    return None


def watched(raw: Any, name: str, what: str, explain: Explain) -> Callable[..., Any]:
    """Return a method of an object that raises errors of torch as they are explained; it does not hold the object.

    Args:
        raw: The object.
        name: Name of the method, as its class has it.
        what: Communication that the method makes.
        explain: Function of an error, what failed and its seconds.

    """
    plain, own = getattr(type(raw), name), weakref.ref(raw)  # no cycle: connections close with the last reference

    def _run(*given: Any, **named: Any) -> Any:
        start_s = time.monotonic()
        try:
            return plain(own(), *given, **named)
        except RuntimeError as error:
            explained = explain(error, what, time.monotonic() - start_s)
            if explained is None:
                raise
            raise explained from error

    return _run


def _is_of_communication(error: BaseException) -> bool:
    if isinstance(error, CommError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or _SIGN in str(error)
