"""Sums that go by a schedule in the place of a ring."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pliant.netmodel import Floats, PointToPoint, Round
from pliant.schedules.cost import messages_of
from pliant.schedules.dense import fastest_schedule
from pliant.spec import Schedule, Scheduling, Topology

__all__ = ["by_schedule", "require_ranks", "rounds_of_blocks"]


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
    require_ranks(schedule, topology)
    found: list[Round] = []
    for each in rounds:
        messages = each.messages
        if isinstance(messages, PointToPoint) and messages.cyclic and each.repeat == 2 * (topology.num_ranks - 1):
            found += _in_place_of(each, messages, schedule, topology)
        else:
            found.append(each)
    return found


def require_ranks(schedule: Scheduling, topology: Topology) -> None:
    """Raise ValueError for a schedule of another number of ranks."""
    if isinstance(schedule, Schedule) and schedule.num_ranks != topology.num_ranks:
        raise ValueError(
            f"the schedule {schedule.name!r} of the plan is for {schedule.num_ranks} ranks, but {topology.num_ranks} "
            "are simulated; make one for these hosts with `pliant schedule`."
        )


def _in_place_of(ring: Round, around: PointToPoint, schedule: Scheduling, topology: Topology) -> Iterator[Round]:
    """Yield the rounds of the schedules of all buckets; each round has the bytes of the buckets that are in it."""
    chosen = [
        schedule if isinstance(schedule, Schedule) else fastest_schedule(float(size), topology)
        for size in around.num_bytes
    ]
    yield replace(ring, messages=None, repeat=1, after={})
    for one in dict.fromkeys(chosen):
        mine = around.num_bytes * np.array([each == one for each in chosen])
        if one is None:
            added = mine * (topology.num_ranks - 1) / topology.num_ranks
            yield Round(messages=replace(around, num_bytes=mine), repeat=ring.repeat, after={"reduce_bytes": added})
        else:
            yield from rounds_of_blocks(one, one.parts, mine)
    after = {key: value for key, value in ring.after.items() if key != "reduce_bytes"}
    if after:
        yield Round(messages=None, before=after)


def rounds_of_blocks(schedule: Schedule, shares: Sequence[float], num_bytes: Floats) -> Iterator[Round]:
    """Yield the rounds of a schedule of sums whose blocks have these shares of num_bytes, (num_buckets,)."""
    for moves in schedule.rounds:
        if moving := [move for move in moves if shares[move.block]]:
            messages, most_reduced = messages_of(moving, shares, num_bytes)
            yield Round(messages=messages, after={"reduce_bytes": num_bytes * most_reduced}, posted=True)
