"""A choice and some buckets -> what goes over the network for them, and what is computed, as the engine does it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pliant.layouts.division import factor_shape
from pliant.layouts.payloads import granularity, num_kept, payload_bytes
from pliant.simulator.blocks import blocks
from pliant.simulator.messages import Floats, Ints, Pairs, Product, Round
from pliant.simulator.schedules import around_ring, average, embedded, ring
from pliant.spec import Choice, CodecSpec, Graph, Topology

__all__ = ["Batch", "Moved", "inside_hosts", "moved"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Parts of buckets that are exchanged alike; each by itself, but counted together."""

    numel: Floats
    """(num_buckets,) elements of each."""
    itemsize: Floats
    """(num_buckets,) bytes of an element where no codec is used."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Per bucket, of its tensors; needed for low_rank."""
    held: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """(num_buckets, num_ranks): elements that each rank owns; needed for owners."""
    num_held: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """(num_buckets, num_ranks): tensors that each rank owns."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """An exchange: rounds that are waited for, and rounds that follow once the result has been handed over."""

    task: tuple[Round, ...]
    rest: tuple[Round, ...] = ()


def moved(choice: Choice, batch: Batch, topology: Topology, turn: int = 0) -> Moved:
    """Return what an exchange under a choice moves, on all ranks of a topology.

    Args:
        choice: After its warm-up, if it has one.
        batch: What is exchanged.
        topology: Who there is; more than one rank.
        turn: How many exchanges were before, for graphs that change.

    Raises:
        ValueError: The algorithm is not Pliant's, so nobody knows what it sends.

    """
    if choice.own is not None:
        raise ValueError(
            f"the plan has {choice.own}, an algorithm of your own, and only it knows what it sends and computes; "
            "simulate a plan without it, or measure this one."
        )
    num_ranks = topology.num_ranks
    if choice.hierarchical:
        return _between_hosts(choice, batch, topology, turn)
    rounds = _CARRIERS[choice.collective](choice, batch, num_ranks, turn)
    if choice.what == "change":  # the difference to where all set out, and the outer step
        rounds = [_work(_passes(batch, 2)), *rounds, _work(_passes(batch, 3))]
    if choice.collective == "gossip" and choice.codec is not None and choice.gamma == 0:
        return Moved(task=(replace(rounds[0], messages=None, after={}),), rest=(replace(rounds[0], before={}),))
    if choice.what == "gradient" and choice.delay_steps:
        return Moved(task=(_work(_passes(batch, 3)),), rest=tuple(rounds))
    return Moved(task=tuple(rounds))


def inside_hosts(num_bytes: Floats, topology: Topology) -> list[Round]:
    """Return an exact sum of `num_bytes`, (num_buckets,), over the ranks of each host, around a ring of its own."""
    sizes = [host.num_ranks for host in topology.hosts]
    if max(sizes) == 1:
        return []
    repeat = 2 * (max(sizes) - 1)
    source, target, share = [], [], []
    for k, size in enumerate(sizes):
        ranks = np.array(topology.ranks_of(k)) if size > 1 else np.zeros(0, dtype=np.int64)
        source.append(ranks)
        target.append(np.roll(ranks, -1))
        share.append(np.full(len(ranks), 2 * (size - 1) / size / repeat))
    pairs = Pairs(
        source=np.concatenate(source), target=np.concatenate(target), share=np.concatenate(share), num_bytes=num_bytes
    )
    return [Round(messages=pairs, repeat=repeat, after={"reduce_bytes": num_bytes})]


def _between_hosts(choice: Choice, batch: Batch, topology: Topology, turn: int) -> Moved:
    """Sum to the leader of each host, exchange between leaders, and broadcast; or, of weights, without the sum."""
    sizes = np.array([host.num_ranks for host in topology.hosts])
    leaders = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    followers = np.setdiff1d(np.arange(topology.num_ranks), leaders)
    theirs = leaders[np.searchsorted(leaders, followers, side="right") - 1]
    num_bytes = batch.numel * (4 if _staged(choice) else batch.itemsize)
    ones = np.ones(len(followers))
    up = Pairs(source=followers, target=theirs, share=ones, num_bytes=num_bytes)
    down = Pairs(source=theirs, target=followers, share=ones, num_bytes=num_bytes)
    added = {"reduce_bytes": num_bytes * float(sizes.max() - 1)}
    between = Moved(task=())
    if len(sizes) > 1:
        flat = Topology(hosts=tuple(replace(host, num_ranks=1) for host in topology.hosts))
        before = replace(choice.before, hierarchical=False) if choice.before else None
        between = moved(replace(choice, hierarchical=False, before=before), batch, flat, turn)
    task, rest = (embedded(rounds, leaders, topology.num_ranks) for rounds in (between.task, between.rest))
    if len(followers):
        first = [] if choice.between_steps else [Round(messages=up, after=added)]
        task = [*first, *task, Round(messages=down)]
    return Moved(task=tuple(task), rest=tuple(rest))


def _staged(choice: Choice) -> bool:
    """Say whether gradients are brought to float32 first."""
    return choice.staged or choice.between_steps


def _codec(choice: Choice) -> CodecSpec:
    if choice.codec is None:
        raise ValueError(f"{choice.collective} needs a codec, but the choice names none.")
    return choice.codec


def _work(before: dict[str, Floats]) -> Round:
    return Round(messages=None, before=before)


def _passes(batch: Batch, count: float) -> dict[str, Floats]:
    return {"reduce_bytes": 4 * count * batch.numel}


def _payloads(codec: CodecSpec | None, numel: Floats) -> Floats:
    """Return payload_bytes of an array of any shape."""
    different, where = np.unique(numel, return_inverse=True)
    return np.array([payload_bytes(codec, int(k)) for k in different], dtype=np.float64)[where].reshape(numel.shape)


def _all_reduce(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    codec, numel = choice.codec, batch.numel
    if codec is None:
        return [ring(numel * (4 if _staged(choice) else batch.itemsize), num_ranks)]
    sent = 2 * numel
    if codec.name == "randomk":
        sent = 4 * np.array([num_kept(codec, int(k)) for k in numel], dtype=np.float64)
    before = {f"encode {codec.name}": numel, **_passes(batch, 0 if codec.name != "randomk" else 2)}
    around = ring(sent, num_ranks)
    return [replace(around, before=before, after={**around.after, f"decode {codec.name}": numel})]


def _scatter_gather(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    """Encode for each owner, send; owners add up, encode the mean and send it to all; decode. In pieces."""
    codec, numel = _codec(choice), batch.numel
    block = granularity(codec)
    units = np.ceil(numel / block)
    cuts = np.floor(np.arange(num_ranks) * units[:, None] / num_ranks) * block  # (num_buckets, num_ranks)
    edges = np.minimum(np.concatenate([cuts, numel[:, None]], axis=1), numel[:, None])
    part = np.diff(edges, axis=1)  # (num_buckets, num_ranks)
    largest, others = part.max(1), numel - part.min(1)
    pieces = np.maximum(1, np.minimum(np.ceil(4 * largest / choice.chunk_bytes), np.ceil(largest / block)))
    payload = _payloads(codec, part)
    everybody = np.ones((1, num_ranks))
    on_worker = "encode" if choice.feedback == "none" else "feedback"
    on_owner = "feedback" if choice.feedback == "both" else "encode"
    reduce = {f"add {codec.name}": (num_ranks - 1) * largest, "reduce_bytes": 8 * largest}
    reduce[f"{on_owner} {codec.name}"] = largest
    reduce[f"decode {codec.name}"] = largest
    up = Round(
        messages=Product(give=everybody, take=payload),
        before={f"{on_worker} {codec.name}": others},
        before_pieces=pieces * (num_ranks - 1),
        after=reduce,
        after_pieces=pieces,
        after_share=1 / (num_ranks - 1),  # a piece is added up when the last peer's has come
        split=pieces,
    )
    down = Round(
        messages=Product(give=payload, take=everybody),
        before_pieces=pieces,
        after={f"decode {codec.name}": others},
        after_pieces=pieces,
        split=pieces,
    )
    return [up, down]


def _all_gather(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    codec = _codec(choice)
    kept = np.array([num_kept(codec, int(k)) for k in batch.numel], dtype=np.float64)
    # A transform's sums are restored once; chosen elements are added one payload after another, over zeros.
    restore = {"decode dct": batch.numel} if codec.name == "dct" else {f"add {codec.name}": num_ranks * kept}
    before = {f"encode {codec.name}": batch.numel, **_passes(batch, 2)}
    around = around_ring(_payloads(codec, batch.numel), num_ranks)
    return [replace(around, before=before, after={**restore, **_passes(batch, 3)})]


def _low_rank(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    """Two averages: of P = M Q behind what stays whole, and of Q = M^T P."""
    rank = int(_codec(choice).settings.get("rank", 4))
    first, second = np.zeros(len(batch.shapes)), np.zeros(len(batch.shapes))
    for b, shapes in enumerate(batch.shapes):
        for shape in shapes:
            factor = factor_shape(shape, rank)
            first[b] += np.prod(shape, dtype=np.float64) if factor is None else shape[0] * factor[0]
            second[b] += 0 if factor is None else factor[0] * factor[1]
    left, right = average(first, num_ranks), average(second, num_ranks)
    return [_work(_passes(batch, 1.5)), *left, _work(_passes(batch, 1)), *right, _work(_passes(batch, 2))]


def _blocks(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    if choice.selection is None:
        raise ValueError("blocks need a selection, but the choice has none.")
    by_owners = Choice(collective="scatter_gather", codec=CodecSpec(name="int4"), feedback="both")

    def coded(numel: Floats) -> list[Round]:
        return _scatter_gather(by_owners, replace(batch, numel=numel), num_ranks, turn)

    rounds = blocks(choice.selection, batch.shapes, num_ranks, coded)
    return [_work(_passes(batch, 2)), *rounds, _work(_passes(batch, 2))]


def _owner(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    """Gradients to owners, who add up and tell all the norms; weights follow once, after the step."""
    codec, held = choice.codec, batch.held
    payload = held * batch.itemsize[:, None] if codec is None else _payloads(codec, held)
    everybody = np.ones((1, num_ranks))
    before, after = _passes(batch, 1), _passes(batch, 1)
    most = held.max(1, initial=0)
    if codec is None:
        after = {"reduce_bytes": after["reduce_bytes"] + 4 * most * (num_ranks - 1)}
    else:
        before[f"encode {codec.name}"] = batch.numel - held.min(1)
        after[f"add {codec.name}"] = most * (num_ranks - 1)
    norms = Product(give=8 * batch.num_held, take=everybody)
    return [
        Round(messages=Product(give=everybody, take=payload), before=before, after=after),
        Round(messages=norms, after=_passes(batch, 1)),
    ]


def _gossip(choice: Choice, batch: Batch, num_ranks: int, turn: int) -> list[Round]:
    graph, codec = choice.graph or Graph(), choice.codec
    size = _payloads(codec, batch.numel)
    if graph.kind == "complete":
        most, messages = (
            num_ranks - 1,
            Product(give=np.ones((1, num_ranks)), take=np.repeat(size[:, None], num_ranks, 1)),
        )
    else:
        source, target = _edges(graph, turn, num_ranks)
        most = np.bincount(target, minlength=1).max()
        messages = Pairs(source=source, target=target, share=np.ones(len(source)), num_bytes=size)
    if codec is None:
        return [Round(messages=messages, after=_passes(batch, 1.0 + most))]
    before = {
        f"encode {codec.name}": batch.numel,
        f"add {codec.name}": _added(codec, batch),
        **_passes(batch, most + 2),
    }
    return [Round(messages=messages, before=before, after={f"add {codec.name}": most * _added(codec, batch)})]


def _added(codec: CodecSpec, batch: Batch) -> Floats:
    """Return the elements that adding one payload touches, (num_buckets,)."""
    if codec.name not in ("topk", "blocktopk"):
        return batch.numel
    return np.array([num_kept(codec, int(k)) for k in batch.numel], dtype=np.float64)


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


_CARRIERS: dict[str, Callable[[Choice, Batch, int, int], list[Round]]] = {
    "all_reduce": _all_reduce,
    "scatter_gather": _scatter_gather,
    "all_gather": _all_gather,
    "low_rank": _low_rank,
    "owner": _owner,
    "blocks": _blocks,
    "gossip": _gossip,
}
