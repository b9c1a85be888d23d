"""Division of large messages among several connections between the same two ranks.

One TCP connection carries a window of some megabytes in a round trip, however fast the link is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.spec.slices import RING_SEGMENT_BYTES, SLICE_BYTES

__all__ = ["MAX_CONNECTIONS", "SMALL_BYTES", "ConnectionChoice", "Striping", "ring_block", "slices"]

MAX_CONNECTIONS = 32
"""The most connections between two ranks: with more, links were seen to collapse (160 in PVLDB'24, hivemind)."""
SMALL_BYTES = 16 * 1024
"""Bytes up to which all messages take one connection, as a packet or some."""


@dataclass(frozen=True, kw_only=True)
class ConnectionChoice:
    """Number of connections between each two ranks, and the reason for it."""

    connections: int = 1
    why: str = "one connection, as Gloo has it; relax(..., connections=) asks for more"


class Striping:
    """Connections of a comm, and the slices of its messages on each of them. No communication, and no state.

    Note [order of slices]: both ends compute the connections of a message from its bytes and its turn alone. A message
    goes in a slice for each 256 KB, and its slices take the connections from the first one on. So the first has the
    widest window, messages that are not cut go over it, and none starts slowly on a connection that has rested.
    Messages of a pipeline, which are under way at once, have turns: each takes the connections behind those of the turn
    before, so that together they use all; but those of up to 16 KB, which take the first. Messages keep their order on
    each connection. Slices of collectives begin at the first connection, too.

    Args:
        size: Ranks of the comm.
        connections: Connections between each two of them.

    """

    def __init__(self, size: int, connections: int) -> None:
        if not 1 <= connections <= MAX_CONNECTIONS:
            raise ValueError(
                f"{connections} connections between two ranks are asked for; give at least 1 and at most "
                f"{MAX_CONNECTIONS}."
            )
        self.connections, self._size = connections, size

    def count(self, num_bytes: int) -> int:
        """Return the number of slices of a message."""
        return max(1, min(self.connections, _ceil(num_bytes, SLICE_BYTES)))

    def placed(self, x: Tensor, turn: int) -> Sequence[tuple[int, Tensor]]:
        """Return the slices of a message, each with its connection; the same for who sends and who receives it.

        Args:
            x: Contiguous.
            turn: Number of the message in its pipeline; 0 of one by itself.

        """
        if self.connections == 1 or x.nbytes <= SMALL_BYTES:
            return [(0, x)]
        count = self.count(x.nbytes)
        parts = [x] if count == 1 else slices(x, count)
        return [((turn * count + k) % self.connections, part) for k, part in enumerate(parts)]

    def of_sum(self, x: Tensor, *, any_order: bool) -> Sequence[Sequence[Tensor]]:
        """Return lists of tensors, each list to be reduced as one message; together they are x.

        Gloo's ring reduces a message in as many blocks as there are ranks, each in an order of ranks of its own. So
        a slice has the same part of each block, and every sum keeps its order, and its bits.

        Args:
            x: Contiguous.
            any_order: Whether the order does not matter, as for integers.

        """
        flat, count = x.view(-1), self.count(x.nbytes)
        if count == 1:
            return [[x]]
        if any_order:
            return [[part] for part in flat.split(_ceil(len(flat), count))]
        block = ring_block(len(flat), self._size, x.itemsize)
        width = _ceil(block, count)
        return [self._column(flat, block, start, min(start + width, block)) for start in range(0, block, width)]

    def _column(self, x: Tensor, block: int, start: int, stop: int) -> Sequence[Tensor]:
        """Return the same part of each block, padded to what is a block of Gloo's again."""
        padded = stop - start
        while padded < (wanted := ring_block(padded * self._size, self._size, x.itemsize)):
            padded = wanted
        parts: list[Tensor] = []
        for first in range(0, self._size * block, block):
            part = x[first + start : first + stop]
            parts += [part, part.new_zeros(padded - len(part))]
        return [part for part in parts if len(part)]


def slices(x: Tensor, count: int) -> Sequence[Tensor]:
    """Return at most so many parts of a contiguous tensor, in bytes: views, of the same length but for the last."""
    return x.view(-1).view(torch.uint8).split(_ceil(x.nbytes, count))


def ring_block(numel: int, size: int, itemsize: int) -> int:
    """Return the elements in the block of a rank in Gloo's ring (gloo/allreduce.cc); the last blocks may be shorter.

    A block has at least two segments of equal length, each of at most 1 MiB.
    """
    longest = max(1, RING_SEGMENT_BYTES // itemsize)
    segments_of_rank = max(2, _ceil(_ceil(numel, longest), size))
    return segments_of_rank * _ceil(numel, segments_of_rank * size)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
