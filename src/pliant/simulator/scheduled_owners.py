"""Gradients that go to the owners of parts, and new weights from there, by schedules or straight."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pliant.layouts.payloads import granularity
from pliant.netmodel import BucketBatch, Floats, Round, passes, work
from pliant.schedules.coded_rounds import coded_rounds
from pliant.schedules.owned import fastest_half
from pliant.schedules.rooted import Half, place_half
from pliant.simulator.owner_rounds import (
    norms_of_parts,
    owner_rounds,
    owner_rounds_by_hosts,
    payloads,
    spread_inside_hosts,
    sums_inside_hosts,
    weights_by_hosts,
    weights_from_owners,
)
from pliant.simulator.scheduled import require_ranks, rounds_of_blocks
from pliant.simulator.scheduled_codes import round_in_codes
from pliant.spec import CodecSpec, OwnedOptimizer, OwnerScheduling, ParameterServer, Schedule, Topology
from pliant.spec.owners import schedule_of

__all__ = ["sums_and_norms", "sums_to_owners", "weights_to_all"]

_Hosts = tuple[tuple[int, ...], ...]
"""Ranks of each host; of one each where nothing is added up inside."""


def sums_and_norms(
    node: OwnedOptimizer | ParameterServer, batch: BucketBatch, topology: Topology, *, by_hosts: bool = False
) -> list[Round]:
    """Return the rounds of `sums_to_owners`, and those in which all get the norms of parts."""
    return [*sums_to_owners(node, batch, topology, by_hosts=by_hosts), *norms_of_parts(batch, topology.num_ranks)]


def sums_to_owners(
    node: OwnedOptimizer | ParameterServer, batch: BucketBatch, topology: Topology, *, by_hosts: bool = False
) -> list[Round]:
    """Return the rounds of gradients on their way to owners.

    Args:
        node: How they go.
        batch: Buckets, with what each rank owns of them.
        topology: Who there is.
        by_hosts: Whether ranks of a host add up first.

    Raises:
        ValueError: The schedule is for another number of ranks, or of hosts.

    """
    codec = node.codec
    sizes = batch.held * batch.itemsize[:, None] if codec is None else payloads(codec, batch.held)
    ways = _schedules_for(schedule_of(node), "reduce", sizes, topology, by_hosts=by_hosts)
    rounds = list[Round]()
    straight = np.array([way is None for way in ways])
    if straight.any():
        mine = _only(batch, straight)
        made = owner_rounds_by_hosts(node, mine, topology) if by_hosts else owner_rounds(node, mine, topology.num_ranks)
        rounds += made
    if not straight.all():
        mine, hosts = _only(batch, ~straight), _hosts_in(topology, by_hosts=by_hosts)
        between = chain.from_iterable(
            _rounds_of_parts(way, "reduce", batch.held[b], hosts, _at(b, ways), itemsize=batch.itemsize[b], codec=codec)
            for b, way in enumerate(ways)
            if way is not None
        )
        copy = work(passes(mine, 1))
        rounds += sums_inside_hosts(mine, topology) if by_hosts else []
        rounds += [copy, *between, copy]
    return rounds


def weights_to_all(
    schedule: OwnerScheduling, held: Floats, itemsize: int, topology: Topology, *, by_hosts: bool
) -> tuple[Round, ...]:
    """Return the rounds of new weights of one dtype after a step, of which each rank owns `held`, (1, num_ranks)."""
    (way,) = _schedules_for(schedule, "copy", itemsize * held, topology, by_hosts=by_hosts)
    if way is None:
        return weights_by_hosts(itemsize * held, topology) if by_hosts else weights_from_owners(itemsize * held)
    copy, hosts = work({"reduce_bytes": itemsize * held.sum(1)}), _hosts_in(topology, by_hosts=by_hosts)
    between = _rounds_of_parts(way, "copy", held[0], hosts, np.ones(1), itemsize=itemsize)
    return (copy, *between, spread_inside_hosts(itemsize * held, topology) if by_hosts else copy)


def _hosts_in(topology: Topology, *, by_hosts: bool) -> _Hosts:
    """Return those among whom parts travel: hosts, or ranks."""
    if by_hosts:
        return tuple(tuple(topology.ranks_of(k)) for k in range(len(topology.hosts)))
    return tuple((rank,) for rank in range(topology.num_ranks))


def _only(batch: BucketBatch, those: NDArray[np.bool_]) -> BucketBatch:
    """Return the batch without the content of all other buckets."""
    rows = those[:, None]
    return replace(batch, numel=batch.numel * those, held=batch.held * rows, num_held=batch.num_held * rows)


def _at(b: int, ways: Sequence[Schedule | None]) -> Floats:
    return (np.arange(len(ways)) == b).astype(np.float64)


def _schedules_for(
    schedule: OwnerScheduling, kind: Half, sizes: Floats, topology: Topology, *, by_hosts: bool
) -> list[Schedule | None]:
    """Return the way of the parts of each bucket; None where they go straight.

    Args:
        schedule: The node's; "auto" and a topology stand for the fastest on the simulated topology.
        kind: Whether sums go to owners, or parts from them to all.
        sizes: Bytes that each rank owns, (num_buckets, num_ranks).
        topology: The simulated network.
        by_hosts: Whether hosts stand in the place of ranks.

    Raises:
        ValueError: The schedule is for another number of ranks, or hosts.

    """
    places = topology.one_rank_each if by_hosts else topology
    if schedule == "direct" or places.num_ranks == 1:
        return [None] * len(sizes)
    require_ranks(schedule, places)
    if isinstance(schedule, Schedule):
        return [schedule if held.any() else None for held in sizes]
    found: list[Schedule | None] = []
    for held in sizes:
        on_hosts = [float(held[list(ranks)].sum()) for ranks in _hosts_in(topology, by_hosts=by_hosts)]
        found.append(fastest_half(on_hosts, kind, places))
    return found


def _rounds_of_parts(
    schedule: Schedule,
    kind: Half,
    numels: Sequence[float],
    hosts: _Hosts,
    those: Floats,
    *,
    itemsize: float,
    codec: CodecSpec | None = None,
) -> Iterator[Round]:
    """Yield the rounds of parts by half of a schedule.

    Args:
        schedule: Over hosts.
        kind: Which half of it.
        numels: Elements that each rank owns.
        hosts: Ranks of each.
        those: 1 for buckets with such parts and else 0, (num_buckets,).
        itemsize: Bytes of an element without a codec.
        codec: Of partial sums.

    """
    unit = 1 if codec is None else granularity(codec)
    half = place_half(schedule, kind, tuple(int(n) for n in numels), hosts, unit)
    if codec is None:
        yield from rounds_of_blocks(half.schedule, [itemsize * n for n in half.numels], those)
    else:
        for each in coded_rounds(half.schedule, half.numels, half.collective.holders):
            yield round_in_codes(each, half.numels, codec, those)
