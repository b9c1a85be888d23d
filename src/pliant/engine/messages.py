"""Messages between ranks and owners, and the threads that wait for them."""

import contextlib
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from pliant.accelerator import pinned
from pliant.comm.base import CommError, Work

__all__ = ["Message", "comes_in_time", "wait_for", "waiting_thread"]


class Message:
    """Bytes of a fixed layout in host memory: an int64 head and a payload, such as float32.

    Args:
        num_bytes: Bytes of the payload.
        beside: Device that copies from and to it.

    """

    def __init__(self, num_bytes: int, beside: torch.device) -> None:
        self.bytes = pinned(8 + num_bytes, torch.uint8, beside).zero_()
        self.head = self.bytes[:8].view(torch.int64)  # (1,)
        self.payload = self.bytes[8:]  # (num_bytes,)

    @property
    def body(self) -> Tensor:
        """The payload as float32, (num_bytes / 4,)."""
        return self.payload.view(torch.float32)


def waiting_thread(*works: Work) -> threading.Thread:
    """Return a thread that waits for messages, so that their connections can be closed by another."""

    def wait() -> None:
        for work in works:
            wait_for(work)

    thread = threading.Thread(target=wait, name="pliant-owner-ends", daemon=True)
    thread.start()
    return thread


def wait_for(work: Work) -> None:
    """Wait for a message, and keep it and its connection until it has arrived or the peer is gone."""
    with contextlib.suppress(CommError):
        work.wait()


def comes_in_time(
    changed: threading.Condition, has_come: Callable[[], bool], limit_s: float, count: Callable[[], int]
) -> bool:
    """Wait with a condition held; say whether what is awaited has come before nothing else came for so long.

    Args:
        changed: Tells of everything that comes.
        has_come: Says whether what is awaited has.
        limit_s: Longest time in which nothing comes.
        count: Counts what comes; a constant where only what is awaited matters.

    """
    before = count()
    while not changed.wait_for(has_come, limit_s):
        if before == count():
            return False
        before = count()
    return True
