"""Messages between ranks and owners, and waiting for them to be taken."""

import contextlib
import threading

import torch

from pliant.comm.base import CommError, Work

__all__ = ["Message", "wait_for", "waiting_thread"]


class Message:
    """Bytes of a fixed layout: an int64 head and a float32 body."""

    def __init__(self, numel: int) -> None:
        self.bytes = torch.zeros(8 + 4 * numel, dtype=torch.uint8)
        self.head = self.bytes[:8].view(torch.int64)  # (1,)
        self.body = self.bytes[8:].view(torch.float32)  # (numel,)


def waiting_thread(*works: Work) -> threading.Thread:
    """Return a thread that waits for messages: their connections may have to be broken for it."""

    def wait() -> None:
        for work in works:
            wait_for(work)

    thread = threading.Thread(target=wait, name="pliant-owner-ends", daemon=True)
    thread.start()
    return thread


def wait_for(work: Work) -> None:
    """Keep a message and its connection until it has come, or nobody is there to receive it."""
    with contextlib.suppress(CommError):
        work.wait()
