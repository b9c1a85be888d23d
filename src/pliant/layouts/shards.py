"""Cuts and bytes of models that are divided among ranks, for executor and simulator alike; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pliant.layouts.payloads import granularity, payload_bytes
from pliant.spec.codecs import CodecSpec
from pliant.spec.sharded import ReduceScatter, Residual, WeightGather

__all__ = [
    "ALONE_BYTES",
    "CHUNK_BYTES",
    "RESIDUAL_CODEC",
    "ROTATED_BLOCK",
    "Column",
    "coded_bytes",
    "gather_state_bytes",
    "merge_runs",
    "packed_runs",
    "residual_bytes",
    "scatter_payload_bytes",
]

CHUNK_BYTES = 1 << 20
"""Bytes of float32 in one piece of a part, which is coded and sent by itself."""
ALONE_BYTES = 1 << 19
"""Size of an exact part from which on only one is on its way to a rank at a time.

Several large flows that meet at a link overflow its queue: of four hosts at 100 Mbit/s, parts of 0.8 MB then take 1.4
times as long as one after the other. Small ones fit into the queue, and would wait for each other in vain.
"""
ROTATED_BLOCK = 64
"""Elements that a Hadamard rotation mixes; what is left over at a part's end stays as it is."""
RESIDUAL_CODEC = CodecSpec(name="minmax8")
"""Codec of a residual that is kept in 8 bits."""

Run = tuple[int, int]
"""Half-open range of a flat tensor."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Place of one parameter in a row: the shards of a group that one rank holds, one behind the other."""

    name: str
    offset: int
    padded: int
    """Elements in the row; the same on all ranks, and filled up where the parameter cannot be divided evenly."""
    valid: tuple[int, ...]
    """Elements of each rank's shard without what fills up."""


def merge_runs(runs: Sequence[Run]) -> list[Run]:
    """Join runs that touch, in their order; empty ones are left out."""
    merged: list[Run] = []
    for start, stop in runs:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif stop > start:
            merged.append((start, stop))
    return merged


def packed_runs(columns: Sequence[Column], rank: int) -> list[Run]:
    """Return where a rank's elements of some columns lie in its row, without what fills up."""
    return merge_runs([(column.offset, column.offset + column.valid[rank]) for column in columns])


def coded_bytes(codec: CodecSpec | None, numel: int, itemsize: int = 4) -> int:
    """Return the bytes of a part of `numel` elements on the wire: in pieces as executors cut them, or plain."""
    if codec is None:
        return numel * itemsize
    if numel == 0:
        return 0
    block = granularity(codec)
    count = -(-numel * 4 // CHUNK_BYTES)
    units = -(-numel // block)
    cuts = [min(numel, j * units // count * block) for j in range(count)] + [numel]
    return sum(payload_bytes(codec, b - a) for a, b in pairwise(cuts) if b > a)


def scatter_payload_bytes(node: ReduceScatter, numels: Sequence[int], rank: int) -> int:
    """Return the bytes of coded shards of so many elements: those that a rank sends, and all others' of its own."""
    if node.codec is None:
        return 0
    payloads = [coded_bytes(node.codec, numel) for numel in numels]
    return sum(payloads) + (len(payloads) - 2) * payloads[rank]


def residual_bytes(residual: Residual, numel: int) -> int:
    """Return the bytes of a residual of `numel` elements."""
    if residual == "none":
        return 0
    return 4 * numel if residual == "full" else payload_bytes(RESIDUAL_CODEC, numel)


def gather_state_bytes(node: WeightGather | None, numels: Sequence[int], itemsize: int) -> int:
    """Return what a rank keeps for the gather of shards of so many elements.

    Coded payloads, the copy that differences are taken to, and exact weights where backward does not gather again.
    """
    if node is None:
        return 0
    kept = sum(coded_bytes(node.codec, numel) for numel in numels) if node.codec is not None else 0
    if node.differences:
        kept += 4 * sum(numels)
    return kept + (itemsize * sum(numels) if node.codec is None and not node.regather else 0)
