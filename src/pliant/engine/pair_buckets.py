"""Buckets of weights that are exchanged in pairs, memory for their messages, and what a partner needs of a run."""

import threading
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator, pinned
from pliant.collectives.pair_average import PairRule
from pliant.engine.posted_weights import PostedWeights

__all__ = ["MessageRoom", "MessageRooms", "PairedBucket", "PairsHost"]


class PairedBucket:
    """A bucket that is exchanged in pairs.

    Args:
        posted: Its weights.
        rule: The rule by which two ranks exchange it.

    """

    def __init__(self, posted: PostedWeights, rule: PairRule) -> None:
        self.posted, self.rule = posted, rule
        self.hash = zlib.crc32(posted.part.bucket.name.encode())


class MessageRoom:
    """Memory for the body of one message, on the device of the weights and in host memory; on a CPU it is the same.

    Args:
        num_bytes: Bytes of the longest message.
        device: Device of the weights.

    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._on_host = pinned(num_bytes, torch.uint8, device)
        self._on_device = self._on_host
        if is_accelerator(device):
            self._on_device = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def of(self, num_bytes: int) -> tuple[Tensor, Tensor]:
        """Return the first bytes of both, uint8 (num_bytes,)."""
        message = self._on_host[:num_bytes]
        return message if self._on_device is self._on_host else self._on_device[:num_bytes], message


class MessageRooms:
    """Memory for messages that is used again: as much is made as is in use at once.

    Args:
        buckets: Buckets whose messages must fit.

    """

    def __init__(self, buckets: Sequence[PairedBucket]) -> None:
        self._num_bytes = max(bucket.rule.num_bytes for bucket in buckets)
        self._device = buckets[0].posted.flat.device
        self._free: list[MessageRoom] = []
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Generator[MessageRoom]:
        """Give memory for a message within the block."""
        with self._lock:
            room = self._free.pop() if self._free else None
        room = room or MessageRoom(self._num_bytes, self._device)
        yield room
        with self._lock:
            self._free.append(room)


class PairsHost(Protocol):
    """Protocol of the part of a run whose neighbours these are; its calls come from the partners' threads."""

    rank: int
    steps: int
    """Steps that this rank has made."""
    is_open: bool
    """Whether partners may be answered; not between a meeting and the next step."""
    buckets: Sequence[PairedBucket]
    """Buckets, in the same order on all ranks."""
    rooms: MessageRooms

    @property
    def told_steps(self) -> int:
        """Steps that partners are told of, and tell of."""
        ...

    @property
    def known(self) -> tuple[int, ...]:
        """Meetings that each rank has come to, as far as this one knows."""
        ...

    def learn(self, peer: int, meetings: Sequence[int]) -> None:
        """Hear what a partner knows of the meetings."""
        ...

    def count_exchange(self, seconds: float) -> None:
        """Count an exchange that is over, but for the word of it."""
        ...

    def end_exchange(self, steps: int) -> None:
        """Hear that an exchange is over, with a rank that tells of so many steps."""
        ...

    def note(self, seconds: float) -> None:
        """Count time in which weights were coded and added up."""
        ...

    def fail(self, error: BaseException, *, first: int, is_told: bool) -> None:
        """Hear that a rank is lost; `is_told` by a partner, or that its connection broke here."""
        ...
