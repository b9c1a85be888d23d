"""Schedules of sums that end on the owners of parts, and of what goes back from them: found, and beside the plain way.

Each is a schedule of dense sums whose roots are the owners: its reductions carry gradients, its copies new weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pliant.netmodel import DenseExchange, Floats, Links, Overheads, overheads_of
from pliant.schedules.collective import Collective
from pliant.schedules.cost import Cost, predict_cost, times_s
from pliant.schedules.dense import LIMIT_S, SIZES, chosen_by_size, dense_merged, size_at, tree_schedules
from pliant.schedules.family import build_schedule, shapes
from pliant.schedules.orders import host_orders, reordered
from pliant.schedules.rooted import Half, half_of, roots_of
from pliant.schedules.select import Candidate
from pliant.schedules.verify import verify
from pliant.spec import Schedule, Topology

__all__ = ["direct_s", "fastest_half", "fastest_owner_schedule", "owner_candidates", "owner_task"]

_PARTS = 16
"""Shares are rounded to so many parts of a rank's mean, so that vectors that are cut about alike share schedules."""


def owner_task(owned_bytes: Sequence[int], kind: Half) -> Collective:
    """Return what moves if each rank owns so many bytes: of each part to its owner, or of each part back to all."""
    owners = [rank for rank, num_bytes in enumerate(owned_bytes) if num_bytes]
    alone, everybody = tuple((owner,) for owner in owners), (tuple(range(len(owned_bytes))),) * len(owners)
    return Collective(
        num_ranks=len(owned_bytes),
        block_bytes=tuple(owned_bytes[owner] for owner in owners),
        holders=everybody if kind == "reduce" else alone,
        needers=alone if kind == "reduce" else everybody,
    )


def owner_candidates(
    to_bytes: Sequence[int],
    from_bytes: Sequence[int],
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    num_sums: int = 1,
    limit_s: float = LIMIT_S,
) -> list[Candidate]:
    """Return verified schedules whose roots are owners with what they are predicted to take, the fastest first.

    The family over the orders of `host_orders`, and `pack_trees` where each root has the share that it owns. The result
    depends on how fast the machine is if `limit_s` is short, so let one rank ask.

    Args:
        to_bytes: Of the part that each rank owns of a sum, (num_ranks,); all 0 if nothing is summed.
        from_bytes: Of what each rank sends back to all, (num_ranks,); all 0 if nothing is.
        topology: Network of the ranks.
        overheads: Overheads beside it.
        num_sums: Sums for each time that something goes back.
        limit_s: Time for all trees together.

    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    shares = _shares([num_sums * to + back for to, back in zip(to_bytes, from_bytes, strict=True)])
    made_for = replace(overheads, pause_s=0.0)  # so that they are made once for plans with different pauses
    found = [
        _candidate(schedule, to_bytes, from_bytes, topology, overheads, num_sums)
        for schedule in _schedules(shares, topology, made_for, limit_s)
    ]
    return sorted(found, key=lambda each: (each.cost.total_s, each.cost.num_messages, each.name))


@lru_cache(maxsize=256)
def fastest_owner_schedule(
    to_bytes: tuple[int, ...],
    from_bytes: tuple[int, ...],
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    num_sums: int = 1,
) -> Schedule | None:
    """Return the schedule that is predicted to be the fastest of `owner_candidates`; None if the direct way is."""
    if topology.num_ranks == 1 or not any((*to_bytes, *from_bytes)):
        return None
    overheads = overheads if overheads is not None else overheads_of(topology)  # alike for both
    best = owner_candidates(to_bytes, from_bytes, topology, overheads, num_sums=num_sums)[0]
    to_s = direct_s(to_bytes, "reduce", topology, overheads)
    straight_s = num_sums * to_s + direct_s(from_bytes, "copy", topology, overheads)
    return best.schedule if best.cost.total_s < straight_s else None


def fastest_half(owned_bytes: Sequence[float], kind: Half, topology: Topology) -> Schedule | None:
    """Return the fastest schedule where sums alone go to owners, or parts alone back; None if the direct way is.

    Sizes are rounded as those of `dense.SIZES`, so that all that are cut alike are chosen for at once.

    Args:
        owned_bytes: Of the part that each rank owns, (num_ranks,).
        kind: Whether parts are summed, or copied.
        topology: Network of the ranks, whose machines' costs are taken.

    """
    if topology.num_ranks == 1 or not any(owned_bytes):
        return None
    largest = max(owned_bytes)
    below = tuple(size_at(largest / each) if each else None for each in owned_bytes)
    return _fastest_half_by_size(below, kind, topology)[size_at(largest)]


@lru_cache(maxsize=64)
def _fastest_half_by_size(below: tuple[int | None, ...], kind: Half, topology: Topology) -> tuple[Schedule | None, ...]:
    """Return the fastest for each of `SIZES` as the largest part, of which the others are so many places below."""
    overheads = overheads_of(topology)
    owned = [0.0 if less is None else float(SIZES[0] / SIZES[less]) for less in below]
    known = _schedules(_shares(owned), topology, overheads, LIMIT_S)
    straight_s = _direct_s(np.outer(SIZES, owned), kind, topology, overheads)

    def took_s(each: Schedule) -> Floats:
        return times_s(half_of(each, kind), _parts_of(each, owned), SIZES, topology, overheads)

    return chosen_by_size(known, took_s, straight_s)


def _shares(owned: Sequence[float]) -> tuple[int, ...]:
    """Return what ranks own in whole parts of a rank's mean."""
    part = sum(owned) / len(owned) / _PARTS or 1
    return tuple(max(1, round(each / part)) if each else 0 for each in owned)


def direct_s(owned_bytes: Sequence[int], kind: Half, topology: Topology, overheads: Overheads | None = None) -> float:
    """Return what parts of so many bytes are predicted to take straight from every rank to their owners, or back."""
    return float(_direct_s(np.array([owned_bytes], dtype=np.float64), kind, topology, overheads)[0])


def _direct_s(held: Floats, kind: Half, topology: Topology, overheads: Overheads | None) -> Floats:
    """Return the same for several sizes, (num_sizes, num_ranks)."""
    links, everybody = Links(topology, overheads), np.ones_like(held)
    give, take = (everybody, held) if kind == "reduce" else (held, everybody)
    sent_s = links.load(DenseExchange(give=give, take=take, rotated=True)).total_s
    if kind == "copy":
        return sent_s
    added = held.max(axis=1) * (held.shape[1] - 1)
    return sent_s + added / links.overheads.reduce_bytes_per_s * topology.ranks_per_cpu


@lru_cache(maxsize=32)
def _schedules(
    shares: tuple[int, ...], topology: Topology, overheads: Overheads, limit_s: float
) -> tuple[Schedule, ...]:
    """Return verified schedules whose roots own parts in proportion to these shares."""
    found = [*_of_family(shares, topology, overheads)]
    found += tree_schedules(topology, overheads, limit_s, [share / sum(shares) for share in shares])
    for each in found:
        verify(each, dense_merged(each, each.num_blocks).collective)
    return tuple(found)


def _of_family(shares: Sequence[int], topology: Topology, overheads: Overheads) -> Iterator[Schedule]:
    """Yield every shape of the family, over each order of hosts, with a block for each owner."""
    owners = [rank for rank, share in enumerate(shares) if share]
    parts = tuple(shares[owner] / sum(shares) for owner in owners)
    even = Schedule(name="even", num_ranks=len(shares), num_blocks=len(owners), rounds=(), shares=parts)
    task = dense_merged(even, len(owners)).collective
    for number, order in enumerate(host_orders(topology, overheads)):
        ordered, renamed = reordered(topology, order)
        ranks = [rank for host in order for rank in topology.ranks_of(host)]
        places = [ranks.index(owner) for owner in owners]
        for shape in shapes(ordered):
            if number and shape.name == "direct":  # has no neighbours
                continue
            name = shape.name if number == 0 else f"{shape.name} by {'-'.join(map(str, order))}"
            yield replace(renamed(build_schedule(task, places, shape)), name=name, shares=parts)


def _candidate(
    schedule: Schedule,
    to_bytes: Sequence[int],
    from_bytes: Sequence[int],
    topology: Topology,
    overheads: Overheads,
    num_sums: int,
) -> Candidate:
    first = _cost_of_half(schedule, "reduce", to_bytes, topology, overheads)
    second = _cost_of_half(schedule, "copy", from_bytes, topology, overheads)
    cost = Cost(
        rounds=first.rounds * num_sums + second.rounds,
        sent_bytes=tuple(num_sums * up + down for up, down in zip(first.sent_bytes, second.sent_bytes, strict=True)),
        num_messages=num_sums * first.num_messages + second.num_messages,
    )
    merged = dense_merged(schedule, max(sum(to_bytes), sum(from_bytes)))
    return Candidate(name=schedule.name, merged=merged, schedule=schedule, cost=cost)


def _cost_of_half(
    schedule: Schedule, kind: Half, owned_bytes: Sequence[int], topology: Topology, overheads: Overheads
) -> Cost:
    """Predict half of a schedule with each owner's bytes in the blocks whose root it is, by their shares."""
    half, roots = half_of(schedule, kind), roots_of(schedule)
    sizes = tuple(round(part) for part in _parts_of(schedule, owned_bytes))
    moving = (tuple(move for move in moves if sizes[move.block]) for moves in half.rounds)
    half = replace(half, rounds=tuple(moves for moves in moving if moves))
    everybody = (tuple(range(schedule.num_ranks)),) * len(roots)
    task = Collective(num_ranks=schedule.num_ranks, block_bytes=sizes, holders=everybody, needers=everybody)
    return predict_cost(half, task, topology, overheads)


def _parts_of(schedule: Schedule, owned: Sequence[float]) -> list[float]:
    """Return how much of what its root owns each block is, by the blocks' shares."""
    roots = roots_of(schedule)
    rooted = np.bincount(roots, schedule.parts, schedule.num_ranks)
    return [float(owned[root] * part / rooted[root]) for root, part in zip(roots, schedule.parts, strict=True)]
