"""Rounds of a model that is divided among ranks: gradients to their shards, weights to all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from pliant.layouts.shards import ALONE_BYTES, CHUNK_BYTES, coded_bytes
from pliant.netmodel import BucketBatch, DenseExchange, Floats, PointToPoint, Round, passes, work
from pliant.simulator.collective_rounds import among_ranks, ring
from pliant.simulator.levels import groups_of, side_by_side, sums_inside
from pliant.spec import CodecSpec, Exchange, Host, ReduceScatter, Sharded, Topology, WeightGather

__all__ = ["ShardTraffic", "among_replicas", "exchanged", "of_all_shards", "shard_numels", "shard_traffic", "shards_of"]


@dataclass(frozen=True, kw_only=True)
class ShardTraffic:
    """Rounds of the gathers and the reduce-scatter of groups of parameters, by the pass that needs or follows them."""

    before_forward: tuple[Round, ...]
    before_backward: tuple[Round, ...]
    after_backward: tuple[Round, ...]


def exchanged(node: Exchange, batch: BucketBatch) -> BucketBatch:
    """Return a batch in the type in which a node exchanges it."""
    if node.works_in_float32 or node.exchanges_weights:
        return replace(batch, itemsize=np.full_like(batch.itemsize, 4.0))
    return batch


def shard_traffic(node: Sharded, batch: BucketBatch, topology: Topology, *, stands: bool = True) -> ShardTraffic:
    """Return what ranks send each other of their shards of some buckets in a step.

    Args:
        node: Exchanges of the shards.
        batch: The buckets.
        topology: All ranks.
        stands: Whether receives of coded shards may stand, which they do on CPUs alone.

    """
    batch = exchanged(node, batch)
    shards, num_ranks = shards_of(node, topology, batch.num_shards), topology.num_ranks
    if node.gradients is None and len(shards) > 1:
        scatter = sums_inside(batch.numel * batch.itemsize, shards)  # torch's own, which over Gloo is an all-reduce
    else:
        scatter = _reduce_scatter_rounds(node.gradients, batch, shards, num_ranks, stands=stands)
    if node.replicas is None and len(shards) > 1:  # torch's own, too
        shard_bytes = np.ceil(batch.numel / len(shards[0])) * batch.itemsize
        scatter += of_all_shards([ring(shard_bytes, len(shards))], shards, num_ranks)
    forward, backward = _gather_rounds(node.weights, batch, shards, num_ranks, stands=stands)
    return ShardTraffic(before_forward=forward, before_backward=backward, after_backward=tuple(scatter))


def shards_of(node: Sharded, topology: Topology, num_shards: int = 0) -> tuple[tuple[int, ...], ...]:
    """Return the ranks among which each copy of the model is divided.

    So many ranks with consecutive numbers, as a mesh of (replicas, shards) has them. If the number is not known:
    without replicas all ranks, with replicas those of each host, whose links are fast.

    Raises:
        ValueError: The number does not divide that of ranks, or hosts have different numbers of ranks.

    """
    if num_shards:
        num_ranks = topology.num_ranks
        if num_ranks % num_shards:
            raise ValueError(
                f"{num_ranks} ranks cannot hold copies of a model that {num_shards} ranks share each; let a divisor of "
                f"{num_ranks} share it."
            )
        return tuple(tuple(range(k, k + num_shards)) for k in range(0, num_ranks, num_shards))
    if node.replicas is None:
        return (tuple(range(topology.num_ranks)),)
    hosts = _ranks_of_hosts(topology)
    if len({len(ranks) for ranks in hosts}) > 1:
        raise ValueError(
            f"the plan divides the model among the ranks of a host, but hosts have {[len(ranks) for ranks in hosts]} "
            "of them; use hosts with equally many ranks."
        )
    return hosts


def among_replicas(topology: Topology, shards: tuple[tuple[int, ...], ...]) -> Topology:
    """Return a topology of ranks that hold the same shard.

    Args:
        topology: All ranks.
        shards: Ranks of each copy of the model.

    """
    if shards == _ranks_of_hosts(topology):
        return Topology(hosts=tuple(replace(host, num_ranks=1) for host in topology.hosts), links=topology.links)
    # only the number of ranks counts for who sends what
    return Topology(hosts=tuple(Host(name=f"replica {k}") for k in range(len(shards))))


def _ranks_of_hosts(topology: Topology) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ranks.tolist()) for ranks in groups_of("host", topology))


def of_all_shards(rounds: Sequence[Round], shards: tuple[tuple[int, ...], ...], num_ranks: int) -> list[Round]:
    """Let the ranks that hold the same shard do what 0, 1, ... do in `rounds`: those of all shards side by side."""
    return side_by_side([among_ranks(rounds, np.array(ranks), num_ranks) for ranks in zip(*shards, strict=True)])


def shard_numels(batch: BucketBatch, num_shards: int, *, padded: bool) -> Floats:
    """Return the elements of each shard of each bucket, (num_buckets, num_shards), as fully_shard cuts dimension 0."""
    found = np.zeros((len(batch.numel), num_shards))
    for b, shapes in enumerate(batch.shapes):
        for shape in shapes:
            extent, row = (shape[0], prod(shape[1:])) if shape else (1, 1)
            chunk = -(-extent // num_shards)
            for rank in range(num_shards):
                held = chunk if padded else max(0, min(chunk, extent - rank * chunk))
                found[b, rank] += held * row
    return found


def _reduce_scatter_rounds(
    node: ReduceScatter | None,
    batch: BucketBatch,
    shards: tuple[tuple[int, ...], ...],
    num_ranks: int,
    *,
    stands: bool,
) -> list[Round]:
    """Encode for each owner, send, and add up; None is torch's own, which takes a whole all-reduce over Gloo."""
    if len(shards[0]) == 1:
        return []
    num_shards = len(shards[0])
    if node is None:
        return [ring(batch.numel * batch.itemsize, num_ranks)]
    numels = shard_numels(batch, num_shards, padded=node.codec is None)
    others, largest = numels.sum(1) - numels.min(1), numels.max(1)
    added = (num_shards - 1) * largest
    if node.codec is None:  # gradients and sums are looked at for NaN
        before, after = passes(batch, 1), {"reduce_bytes": 4 * (added + largest)}
        return [_between_pairs(None, numels, batch, shards, num_ranks, before, after, to_owners=True)]
    # and packed; the own part is zeroed, divided, unpacked and looked at
    name, more = node.codec.name, 2 if node.rotated or node.residual == "int8" else 0
    before = {f"{'encode' if node.residual == 'none' else 'feedback'} {name}": others}
    after = {f"add {name}": added, "reduce_bytes": 16 * largest}
    pieces = _num_pieces(largest)
    sent = _between_pairs(node.codec, numels, batch, shards, num_ranks, before, after, to_owners=True)
    in_pieces = replace(
        sent,
        before_pieces=pieces * (num_shards - 1),
        after_pieces=pieces,
        after_share=1 / (num_shards - 1),  # a piece is added up when the last peer's has come
        split=pieces,
        posted=stands,
    )
    return [work(passes(batch, 2 + more)), in_pieces]


def _gather_rounds(
    node: WeightGather | None,
    batch: BucketBatch,
    shards: tuple[tuple[int, ...], ...],
    num_ranks: int,
    *,
    stands: bool,
) -> tuple[tuple[Round, ...], tuple[Round, ...]]:
    """Encode the own shard, send it to all, and decode: before forward, and before backward if that gathers again.

    Otherwise backward decodes or copies what forward has received. FSDP2's own copies, into the row of a gather and out
    of it, are no part of it: they are the same under every plan, and `observe` sees them in the times of computing.
    """
    if len(shards[0]) == 1:
        return (), ()
    codec = None if node is None else node.codec
    numels = shard_numels(batch, len(shards[0]), padded=codec is None)
    keeps, copied = node is not None and not node.regather, {"reduce_bytes": batch.numel * batch.itemsize}
    before: dict[str, Floats] = {"reduce_bytes": 4 * numels.max(1)} if keeps else {}  # the hash
    after, again = copied if keeps else {}, copied
    if node is not None and codec is not None:  # the own shard is packed, and what differences are taken to subtracted
        own = 4 * numels.max(1) * (1 + node.differences + keeps)
        before = {f"encode {codec.name}": numels.max(1), "reduce_bytes": own}
        after = {f"{'add' if node.differences else 'decode'} {codec.name}": batch.numel, **copied}
        again = copied if node.differences else after
    once = _between_pairs(codec, numels, batch, shards, num_ranks, before, after, to_owners=False)
    if codec is not None:
        pieces = _num_pieces(numels.max(1))
        posted = stands and node is not None and node.reads_once
        once = replace(once, before_pieces=pieces, split=pieces, posted=posted)
    return (once,), (Round(messages=None, before=again) if keeps else once,)


def _num_pieces(numel: Floats) -> Floats:
    """Return the messages in which each coded part of so many elements goes, (num_buckets,)."""
    return np.maximum(1.0, np.ceil(4 * numel / CHUNK_BYTES))


def _bytes(codec: CodecSpec | None, numels: Floats, batch: BucketBatch) -> Floats:
    sizes = [
        [coded_bytes(codec, int(numel), int(itemsize)) for numel in row]
        for row, itemsize in zip(numels, batch.itemsize, strict=True)
    ]
    return np.array(sizes, dtype=np.float64)


def _between_pairs(
    codec: CodecSpec | None,
    numels: Floats,
    batch: BucketBatch,
    shards: tuple[tuple[int, ...], ...],
    num_ranks: int,
    before: dict[str, Floats],
    after: dict[str, Floats],
    *,
    to_owners: bool,
) -> Round:
    """Send part j of (num_buckets, num_shards) elements to its owner from all others of its copy, or the other way.

    To all of them at once, but for large exact parts, of which each rank sends one after the other.
    """
    part = _bytes(codec, numels, batch)
    if len(shards) == 1:
        everybody = np.ones((1, num_ranks))
        give, take = (everybody, part) if to_owners else (part, everybody)
        alone = (part.max(1, keepdims=True) >= ALONE_BYTES) & (codec is None)
        return Round(messages=DenseExchange(give=give, take=take, rotated=alone), before=before, after=after)
    pairs = np.array([(a, b) for ranks in shards for a in ranks for b in ranks if a != b], dtype=np.int64)
    messages = PointToPoint(source=pairs[:, 0], target=pairs[:, 1], share=np.ones(len(pairs)), num_bytes=part.max(1))
    return Round(messages=messages, before=before, after=after)
