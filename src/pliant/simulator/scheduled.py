"""Sums that go by a schedule in the place of a ring."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pliant.netmodel import Floats, PointToPoint, Round
from pliant.schedules.dense import fastest_schedule
from pliant.spec import Schedule, Scheduling, Topology

__all__ = ["by_schedule"]


def by_schedule(rounds: Sequence[Round], schedule: Scheduling, topology: Topology) -> list[Round]:
    """Return rounds in which every ring of an all-reduce is what a schedule does in its place.

    Args:
        rounds: Of an exchange.
        schedule: See `Scheduling`; "auto" is for the topology itself.
        topology: Who takes part.

    Raises:
        ValueError: The schedule is for another number of ranks.

    """
    if schedule == "ring" or topology.num_ranks == 1:
        return list(rounds)
    if isinstance(schedule, Schedule) and schedule.num_ranks != topology.num_ranks:
        raise ValueError(
            f"the schedule {schedule.name!r} of the plan is for {schedule.num_ranks} ranks, but {topology.num_ranks} "
            "are simulated; make one for these hosts with `pliant schedule`."
        )
    found: list[Round] = []
    for each in rounds:
        is_ring = isinstance(each.messages, PointToPoint) and each.messages.cyclic
        if is_ring and each.repeat == 2 * (topology.num_ranks - 1):
            found += _in_place_of(each, each.messages.num_bytes, schedule, topology)
        else:
            found.append(each)
    return found


def _in_place_of(ring: Round, num_bytes: Floats, schedule: Scheduling, topology: Topology) -> Iterator[Round]:
    """Yield the rounds of the schedules of all buckets; each round has the bytes of the buckets that are in it."""
    chosen = [
        schedule if isinstance(schedule, Schedule) else fastest_schedule(int(size), topology) for size in num_bytes
    ]
    yield replace(ring, messages=None, repeat=1, after={})
    for one in dict.fromkeys(chosen):
        mine = num_bytes * np.array([each == one for each in chosen])
        if one is None:
            messages = replace(ring.messages, num_bytes=mine) if isinstance(ring.messages, PointToPoint) else None
            added = mine * (topology.num_ranks - 1) / topology.num_ranks
            yield Round(messages=messages, repeat=ring.repeat, after={"reduce_bytes": added})
            continue
        shares = one.shares or (1 / one.num_blocks,) * one.num_blocks
        for moves in one.rounds:
            pairs, reduced = Counter[tuple[int, int]](), Counter[int]()
            for move in moves:
                pairs[move.source, move.target] += shares[move.block]
                reduced[move.target] += shares[move.block] * (move.kind == "reduce")
            ends = np.array(list(pairs), dtype=np.int64)  # (num_messages, 2)
            share = np.array(list(pairs.values()))
            yield Round(
                messages=PointToPoint(source=ends[:, 0], target=ends[:, 1], share=share, num_bytes=mine),
                after={"reduce_bytes": mine * max(reduced.values(), default=0.0)},
            )
    after = {key: value for key, value in ring.after.items() if key != "reduce_bytes"}
    if after:
        yield Round(messages=None, before=after)
