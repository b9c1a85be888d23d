"""Rounds of each leaf of a plan: what it sends and computes, one after another."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pliant.layouts.division import factor_shape
from pliant.layouts.payloads import granularity, num_kept
from pliant.layouts.rounds import codes_in_rounds, forwards
from pliant.netmodel import BucketBatch, DenseExchange, Floats, Ints, PointToPoint, Round, passes, work
from pliant.simulator.blocks import blocks
from pliant.simulator.collective_rounds import (
    all_gather,
    all_to_all_in_rounds,
    average,
    gather_in_rounds,
    of_buckets,
    ring,
)
from pliant.simulator.owner_rounds import payloads
from pliant.spec import (
    AllGather,
    AllReduce,
    BlockSparse,
    CodecSpec,
    CodedGossip,
    DecoupledMomentum,
    Gossip,
    Graph,
    LowRank,
    NeighborMean,
    ScatterGather,
)

__all__ = [
    "all_gather_rounds",
    "all_reduce_rounds",
    "block_rounds",
    "gossip_rounds",
    "low_rank_rounds",
    "neighbours_of",
    "scatter_gather_rounds",
]

_InGraph = Gossip | CodedGossip | NeighborMean
"""Nodes that mix by a graph."""
_SLOT_BYTES = 16
"""Payloads of many owners in one tensor begin at multiples of it."""


def _num_kept(codec: CodecSpec, numel: Floats) -> Floats:
    return np.array([num_kept(codec, int(k)) for k in numel], dtype=np.float64)


def all_reduce_rounds(node: AllReduce, batch: BucketBatch, num_ranks: int, turn: int) -> list[Round]:
    """Return the ring, or few rounds, and what a cast or shared elements cost before and after it."""
    codec, numel = node.codec, batch.numel
    if node.few_rounds:
        return average(numel, num_ranks, value_bytes=batch.itemsize, in_parts=True, by_ring=node.schedule != "ring")
    if codec is None:
        return [ring(numel * batch.itemsize, num_ranks)]
    shared = codec.facts.kind == "shared"
    sent = 4 * _num_kept(codec, numel) if shared else 2 * numel
    before = {f"encode {codec.name}": numel, **passes(batch, 2 if shared else 0)}
    around = ring(sent, num_ranks)
    return [replace(around, before=before, after={**around.after, f"decode {codec.name}": numel})]


def scatter_gather_rounds(
    node: ScatterGather, batch: BucketBatch, num_ranks: int, *, may_forward: bool = False
) -> list[Round]:
    """Return the rounds of `CompressedAverage`: encode for each owner, send; owners add up, encode the mean; decode."""
    numel = batch.numel
    codec = node.codec
    part = _parts(codec, numel, num_ranks)
    payload, largest, others = payloads(codec, part), part.max(1), numel - part.min(1)
    pieces = np.maximum(1, np.minimum(np.ceil(4 * largest / node.chunk_bytes), np.ceil(largest / granularity(codec))))
    slots = np.ceil(payload.max(1) / _SLOT_BYTES) * _SLOT_BYTES
    on_worker = "encode" if node.feedback == "none" else "feedback"
    on_owner = "feedback" if node.feedback == "both" else "encode"
    before, after = {f"{on_worker} {codec.name}": others}, {f"decode {codec.name}": others}
    reduce = {f"add {codec.name}": (num_ranks - 1) * largest, "reduce_bytes": 8 * largest}
    reduce[f"{on_owner} {codec.name}"] = largest
    reduce[f"decode {codec.name}"] = largest
    up, down = _in_pieces(payload, pieces, before, reduce, after)
    gathers = np.array(
        [
            codes_in_rounds(int(size), int(most), node.chunk_bytes, num_ranks)
            for size, most in zip(payload.max(1), largest, strict=True)
        ]
    )
    sends_on = gathers & np.array([may_forward and forwards(int(size), num_ranks) for size in payload.max(1)])
    return [
        *of_buckets(sends_on, [work(before), *all_to_all_in_rounds(slots, num_ranks), work(reduce)]),
        *of_buckets(~sends_on, [up]),
        *of_buckets(gathers, [*gather_in_rounds(slots, num_ranks), work(after)]),
        *of_buckets(~gathers, [down]),
    ]


def _parts(codec: CodecSpec, numel: Floats, num_ranks: int) -> Floats:
    """Return the elements that each rank owns, (num_buckets, num_ranks)."""
    block = granularity(codec)
    units = np.ceil(numel / block)
    cuts = np.floor(np.arange(num_ranks) * units[:, None] / num_ranks) * block
    edges = np.minimum(np.concatenate([cuts, numel[:, None]], axis=1), numel[:, None])
    return np.diff(edges, axis=1)


def _in_pieces(
    payload: Floats, pieces: Floats, before: dict[str, Floats], reduce: dict[str, Floats], after: dict[str, Floats]
) -> tuple[Round, Round]:
    """Return messages in pairs to the owners of payloads, (num_buckets, num_ranks) bytes, and back to all."""
    num_ranks = payload.shape[1]
    everybody = np.ones((1, num_ranks))
    up = Round(
        messages=DenseExchange(give=everybody, take=payload, rotated=True),
        before=before,
        before_pieces=pieces * (num_ranks - 1),
        after=reduce,
        after_pieces=pieces,
        after_share=1 / (num_ranks - 1),  # a piece is added up when the last peer's has come
        split=pieces,
        posted=True,
    )
    down = Round(
        messages=DenseExchange(give=payload, take=everybody, rotated=True),
        before_pieces=pieces,
        after=after,
        after_pieces=pieces,
        split=pieces,
        posted=True,
    )
    return up, down


def all_gather_rounds(
    node: AllGather | DecoupledMomentum, batch: BucketBatch, num_ranks: int, turn: int
) -> list[Round]:
    """Return the gather of every rank's chosen elements or coefficients."""
    codec = node.codec
    # A transform's sums are restored once; chosen elements are added one payload after another, over zeros.
    restore = {f"add {codec.name}": num_ranks * _num_kept(codec, batch.numel)}
    if codec.facts.kind == "transform":
        restore = {f"decode {codec.name}": batch.numel}
    before = {f"encode {codec.name}": batch.numel, **passes(batch, 2)}
    around = all_gather(payloads(codec, batch.numel), num_ranks)
    return [work(before), *around, work({**restore, **passes(batch, 3)})]


def low_rank_rounds(node: LowRank, batch: BucketBatch, num_ranks: int, turn: int) -> list[Round]:
    """Two averages: of P = M Q behind what stays whole, and of Q = M^T P."""
    first, second = np.zeros(len(batch.shapes)), np.zeros(len(batch.shapes))
    for b, shapes in enumerate(batch.shapes):
        for shape in shapes:
            factor = factor_shape(shape, node.rank)
            first[b] += np.prod(shape, dtype=np.float64) if factor is None else shape[0] * factor[0]
            second[b] += 0 if factor is None else factor[0] * factor[1]
    by_ring = node.schedule != "ring"
    left, right = (average(numel, num_ranks, by_ring=by_ring) for numel in (first, second))
    return [work(passes(batch, 1.5)), *left, work(passes(batch, 1)), *right, work(passes(batch, 2))]


def block_rounds(
    node: BlockSparse,
    batch: BucketBatch,
    num_ranks: int,
    coded_sum: Callable[[ScatterGather, BucketBatch], list[Round]],
) -> list[Round]:
    """Return what choosing, sending and adding up blocks takes, with that of a mean in codes."""
    in_codes = ScatterGather(codec=CodecSpec(name="int4"), feedback="both", schedule=node.schedule)

    def coded(numel: Floats) -> list[Round]:
        return coded_sum(in_codes, replace(batch, numel=numel))

    rounds = blocks(node.selection, batch.shapes, num_ranks, coded, by_ring=node.schedule != "ring")
    return [work(passes(batch, 2)), *rounds, work(passes(batch, 2))]


def gossip_rounds(node: _InGraph, batch: BucketBatch, num_ranks: int, turn: int) -> list[Round]:
    """Return the messages along a graph, and what averaging takes; at a free pace, one question of each rank."""
    graph, codec = node.graph, node.payload_codec
    size = payloads(codec, batch.numel)
    if node.meets_in_pairs:
        return _pair_rounds(node, batch, num_ranks, turn)
    if graph.kind == "complete":
        most, messages = (
            num_ranks - 1,
            DenseExchange(give=np.ones((1, num_ranks)), take=np.repeat(size[:, None], num_ranks, 1)),
        )
    else:
        source, target = _edges(graph, turn, num_ranks)
        most = np.bincount(target, minlength=1).max()
        messages = PointToPoint(source=source, target=target, share=np.ones(len(source)), num_bytes=size)
    if codec is None:
        return [Round(messages=messages, after=passes(batch, 1.0 + most), posted=True)]
    before = {
        f"encode {codec.name}": batch.numel,
        f"add {codec.name}": _elements_added(codec, batch),
        **passes(batch, most + 2),
    }
    after = {f"add {codec.name}": most * _elements_added(codec, batch)}
    return [Round(messages=messages, before=before, after=after, posted=True)]


def _pair_rounds(node: _InGraph, batch: BucketBatch, num_ranks: int, turn: int) -> list[Round]:
    """Let each rank ask one neighbour, who answers it with as many bytes; a thread of its own waits for questions."""
    codec, (source, target) = node.payload_codec, _asked(node.graph, turn, num_ranks)
    size, share = payloads(codec, batch.numel), np.ones(len(source))
    question = PointToPoint(source=source, target=target, share=share, num_bytes=size)
    answer = PointToPoint(source=target, target=source, share=share, num_bytes=size)
    if codec is None:
        return [
            Round(messages=question, posted=True, before=passes(batch, 1)),
            Round(messages=answer, posted=True, before=passes(batch, 4), after=passes(batch, 2)),
        ]
    coded = {f"encode {codec.name}": batch.numel, f"add {codec.name}": _elements_added(codec, batch)}
    added = {f"add {codec.name}": _elements_added(codec, batch), **passes(batch, 3)}
    return [
        Round(messages=question, posted=True, before={**coded, **passes(batch, 1)}),
        Round(messages=answer, posted=True, before={f"encode {codec.name}": batch.numel, **added}, after=added),
    ]


def _asked(graph: Graph, turn: int, num_ranks: int) -> tuple[Ints, Ints]:
    """Return who asks whom in a turn, (num_asking,) each: one neighbour after another, in the order of ranks."""
    if graph.joins_all and num_ranks > 1:  # without a table of all pairs
        ranks, other = np.arange(num_ranks), turn % (num_ranks - 1)
        return ranks, other + (ranks <= other)
    asks = [(i, near[turn % len(near)]) for i, near in enumerate(neighbours_of(graph, num_ranks)) if near]
    source, target = np.array(asks, dtype=np.int64).reshape(-1, 2).T
    return source, target


@lru_cache(maxsize=4)
def neighbours_of(graph: Graph, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each rank, the others that it exchanges with in any step, in ascending order."""
    return tuple(tuple(sorted(each)) for each in graph.neighbours(num_ranks))


def _elements_added(codec: CodecSpec, batch: BucketBatch) -> Floats:
    """Return the elements that adding one payload touches, (num_buckets,)."""
    return _num_kept(codec, batch.numel) if codec.facts.kind == "sparsifier" else batch.numel


def _edges(graph: Graph, turn: int, num_ranks: int) -> tuple[Ints, Ints]:
    """Return who sends to whom, (num_messages,) each, without a matrix where the graph looks alike from everywhere."""
    offsets = None if graph.kind == "matrix" else graph.offsets(turn, num_ranks)
    if offsets is not None:
        ranks = np.arange(num_ranks)
        target = np.repeat(ranks, len(offsets))
        return (target + np.tile(np.array(offsets, dtype=np.int64), num_ranks)) % num_ranks, target
    pairs = [(j, i) for i, row in enumerate(graph.mixing(turn, num_ranks)) for j in row if j != i]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]
