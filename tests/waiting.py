"""Waiting for what other threads and processes do. How long that takes is never asserted."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

PATIENCE_S = 250.0
"""Enough on a busy machine; who waits longer waits for what does not come."""


COMPILES_IN_THREADS = pytest.mark.skipif(
    torch.__version__ < torch.torch_version.TorchVersion("2.13"),
    reason="torch's compiler before 2.13 crashes where threads of one process compile at the same time",
)


def until(condition: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition holds. Where it never does, what there was instead is said."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"waited in vain: {what()}")
        time.sleep(0.02)


def dawdle(seconds: float) -> None:
    """Make whoever calls it slower than others."""
    time.sleep(seconds)


def made_up_clock() -> SimpleNamespace:
    """A stand-in for the module `time` in which time passes only by `sleep`, and at once."""
    clock = SimpleNamespace(now_s=0.0)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    clock.sleep = sleep
    clock.perf_counter = clock.monotonic = lambda: clock.now_s
    return clock


class Scripted(threading.Condition):
    """A condition on which nobody waits: the next of some events happens instead, and then the time is up."""

    def __init__(self, *events: Callable[[], object]) -> None:
        super().__init__()
        self.events = list(events)

    def wait_for(self, predicate, timeout=None):
        self.events.pop(0)()
        return predicate()


__all__ = ["COMPILES_IN_THREADS", "PATIENCE_S", "Scripted", "dawdle", "made_up_clock", "until"]
