"""Schedules for sums of dense vectors: the family over orders of hosts, and trees; and torch's ring beside them."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pliant.netmodel import DenseExchange, Floats, Links, Overheads, PointToPoint, overheads_of
from pliant.schedules.collective import Collective, MergedCollective
from pliant.schedules.cost import predict_cost, times_s
from pliant.schedules.orders import host_orders, reordered
from pliant.schedules.select import Candidate, candidates
from pliant.schedules.trees import pack_trees
from pliant.schedules.verify import verify
from pliant.spec import Schedule, Topology

__all__ = [
    "LIMIT_S",
    "SIZES",
    "chosen_by_size",
    "dense_candidates",
    "dense_merged",
    "dense_task",
    "fastest_schedule",
    "owners_s",
    "ring_s",
    "size_at",
    "tree_schedules",
]

_BLOCKS_PER_RANK = 2
_MOST_RANKS = 24
"""Ranks up to which trees are made: a program over all pairs of more takes minutes."""
_DELAY_QUANTILES = (0.75, 0.5)
"""Parts of the pairs, by their delay, over which trees are made as well as over all: slow ones cost every round."""
_SIZES = (1 << 16, 1 << 22, 1 << 28)
"""Bytes of vectors for each of which the family's fastest schedules are kept."""
_KEPT = 4
_A_DOUBLING = 4
SIZES = 2.0 ** (np.arange(32 * _A_DOUBLING + 1) / _A_DOUBLING)
"""Bytes that schedules are chosen for: four sizes in a doubling, to 4 GiB."""
LIMIT_S = 10.0
"""Time for all trees together."""


def dense_merged(schedule: Schedule, numel: int, itemsize: int = 1) -> MergedCollective:
    """Return the task of a schedule on a vector that all ranks hold and need, cut as the schedule says."""
    cuts, everybody = schedule.cuts(numel), tuple(range(schedule.num_ranks))
    collective = Collective(
        num_ranks=schedule.num_ranks,
        block_bytes=tuple(itemsize * (end - first) for first, end in itertools.pairwise(cuts)),
        holders=(everybody,) * schedule.num_blocks,
        needers=(everybody,) * schedule.num_blocks,
    )
    return MergedCollective(collective=collective, members=tuple((b,) for b in range(schedule.num_blocks)))


def dense_task(num_bytes: int, num_ranks: int) -> Collective:
    """Return the sum of a vector of so many bytes that all ranks hold and need."""
    everybody = (tuple(range(num_ranks)),)
    return Collective(num_ranks=num_ranks, block_bytes=(num_bytes,), holders=everybody, needers=everybody)


def dense_candidates(
    num_bytes: int, topology: Topology, overheads: Overheads | None = None, *, limit_s: float = LIMIT_S
) -> list[Candidate]:
    """Return verified schedules for the sum of a dense vector with what they are predicted to take, the fastest first.

    The family over the orders of `host_orders`, and `pack_trees` in one and two rounds each way, also over the links
    with less delay. The result depends on how fast the machine is if `limit_s` is short, so let one rank ask.

    Args:
        num_bytes: Of the vector.
        topology: Its network.
        overheads: Overheads beside it.
        limit_s: Time for all trees together.

    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    made_for = replace(overheads, pause_s=0.0)  # so that they are made once for plans with different pauses
    found = [_candidate(s, num_bytes, topology, overheads) for s in _schedules(topology, made_for, limit_s)]
    return sorted(found, key=lambda each: (each.cost.total_s, each.cost.num_messages, each.name))


def fastest_schedule(
    num_bytes: float, topology: Topology, overheads: Overheads | None = None, *, is_coded: bool = False
) -> Schedule | None:
    """Return the schedule that is predicted to be the fastest for a vector; None if what needs none is.

    That is Gloo's ring; or, of a vector in codes, whose payload has so many bytes, an average by owners. Sizes are
    rounded, as `SIZES` are, so that all are chosen for at once.
    """
    if topology.num_ranks == 1 or num_bytes <= 0:
        return None
    costs = overheads if overheads is not None else overheads_of(topology)  # alike for both
    return _fastest_by_size(topology, costs, is_coded=is_coded)[size_at(num_bytes)]


def size_at(num_bytes: float) -> int:
    """Return the place of a size among `SIZES`: the nearest one."""
    return min(max(0, round(_A_DOUBLING * math.log2(num_bytes))), len(SIZES) - 1)


@lru_cache(maxsize=64)
def _fastest_by_size(topology: Topology, overheads: Overheads, *, is_coded: bool) -> tuple[Schedule | None, ...]:
    """Return the fastest of each of `SIZES`, of schedules that are made for the costs of the machines alone."""
    without_s = (_owners_s if is_coded else _ring_s)(SIZES, topology, overheads)
    known = _schedules(topology, overheads_of(topology), LIMIT_S)
    return chosen_by_size(known, lambda each: times_s(each, each.parts, SIZES, topology, overheads), without_s)


def chosen_by_size(
    schedules: Iterable[Schedule], took_s: Callable[[Schedule], Floats], without_s: Floats
) -> tuple[Schedule | None, ...]:
    """Return the fastest schedule for each of `SIZES`, of equal ones that with the fewest moves; None without one.

    Args:
        schedules: Those to choose among.
        took_s: Returns what one takes, (num_sizes,).
        without_s: Time of what needs no schedule, likewise.

    """
    known = sorted(schedules, key=lambda each: (each.num_moves, each.name))
    fastest = np.argmin([without_s, *map(took_s, known)], axis=0)
    return tuple(known[at - 1] if at else None for at in fastest)


@lru_cache(maxsize=8)
def _schedules(topology: Topology, overheads: Overheads, limit_s: float) -> tuple[Schedule, ...]:
    """Return verified schedules for a topology, whatever the size of the vector."""
    found = [*_of_family(topology, overheads)]
    found += tree_schedules(topology, overheads, limit_s)
    for each in found:
        verify(each, dense_merged(each, each.num_blocks).collective)
    return tuple(found)


def ring_s(num_bytes: float, topology: Topology, overheads: Overheads | None = None) -> float:
    """Return what Gloo's ring is predicted to take for a dense vector; each rank sends to the one before it."""
    return float(_ring_s(np.array([num_bytes]), topology, overheads)[0])


def _ring_s(num_bytes: Floats, topology: Topology, overheads: Overheads | None) -> Floats:
    num_ranks, links = topology.num_ranks, Links(topology, overheads)
    if num_ranks == 1:
        return np.zeros(len(num_bytes))
    ranks, share = np.arange(num_ranks)[::-1], np.full(num_ranks, 1 / num_ranks)
    around = PointToPoint(source=ranks, target=(ranks - 1) % num_ranks, share=share, num_bytes=num_bytes, cyclic=True)
    added_s = num_bytes * (num_ranks - 1) / num_ranks / links.overheads.reduce_bytes_per_s * topology.ranks_per_cpu
    return links.load(around, 2 * (num_ranks - 1)).total_s + added_s


def owners_s(num_bytes: float, topology: Topology, overheads: Overheads | None = None) -> float:
    """Return what an average by owners of equal parts (`CompressedAverage`) is predicted to take for a payload.

    Each rank sends every other one its part, and the owner sends the mean to all, over windows that the first half has
    opened. Coding takes about as long by any schedule, and is not counted.
    """
    return float(_owners_s(np.array([num_bytes]), topology, overheads)[0])


def _owners_s(num_bytes: Floats, topology: Topology, overheads: Overheads | None) -> Floats:
    num_ranks, links = topology.num_ranks, Links(topology, overheads)
    if num_ranks == 1:
        return np.zeros(len(num_bytes))
    parts = np.ones((1, num_ranks)) * num_bytes[:, None] / num_ranks
    half = DenseExchange(give=np.ones_like(parts), take=parts, rotated=True)
    return links.load(half).total_s + links.load(half, pause_s=0.0).total_s


def _of_family(topology: Topology, overheads: Overheads) -> Iterator[Schedule]:
    """Yield the schedules of the family that are the fastest for some size and order of hosts."""
    num_ranks = topology.num_ranks
    even = Schedule(name="even", num_ranks=num_ranks, num_blocks=_BLOCKS_PER_RANK * num_ranks, rounds=())
    for number, order in enumerate(host_orders(topology, overheads)):
        ordered, renamed = reordered(topology, order)
        kept: dict[str, Schedule] = {}
        for num_bytes in _SIZES:
            for each in candidates(dense_merged(even, num_bytes), ordered, overheads)[:_KEPT]:
                if number and each.schedule.name == "direct":  # has no neighbours
                    continue
                name = each.name if number == 0 else f"{each.name} by {'-'.join(map(str, order))}"
                kept.setdefault(name, replace(renamed(each.schedule), name=name))
        yield from kept.values()


def tree_schedules(
    topology: Topology, overheads: Overheads, limit_s: float, owned: Sequence[float] | None = None
) -> Iterator[Schedule]:
    """Yield what `pack_trees` makes within a time, in one and two rounds each way and over links with less delay.

    Nothing for more than 24 ranks, whose programs take minutes, and for one. With owners one round each way is left
    out, which is `direct` of the family.

    Args:
        topology: Network with the rates.
        overheads: Overheads beside them.
        limit_s: Time for all together.
        owned: Share of the vector whose sum each rank must have; None where any rank may.

    """
    if not 1 < topology.num_ranks <= _MOST_RANKS:
        return
    delays_s = Links(topology, overheads).delays_s
    between = delays_s[~np.eye(len(delays_s), dtype=bool)]
    limits_s = [np.inf] + ([float(np.quantile(between, q)) for q in _DELAY_QUANTILES] if len(set(between)) > 1 else [])
    straight = [((1, 1), np.inf)] if owned is None else []
    for hops, max_delay_s in (*straight, *(((2, 2), each) for each in dict.fromkeys(limits_s))):
        found = pack_trees(topology, overheads, hops=hops, max_delay_s=max_delay_s, limit_s=limit_s / 4, owned=owned)
        if found is not None:
            near = "" if max_delay_s == np.inf else f" under {1e3 * max_delay_s:.3g} ms"
            yield replace(found, name=found.name + near)


def _candidate(schedule: Schedule, num_bytes: int, topology: Topology, overheads: Overheads) -> Candidate:
    merged = dense_merged(schedule, num_bytes)
    cost = predict_cost(schedule, merged.collective, topology, overheads)
    return Candidate(name=schedule.name, merged=merged, schedule=schedule, cost=cost)
