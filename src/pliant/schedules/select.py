"""Selection of a schedule of the family for a bitmap and a topology, and the time of the next selection."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pliant.netmodel import Overheads, overheads_of
from pliant.schedules.collective import Collective, MergedCollective, merge_blocks
from pliant.schedules.cost import Cost, lower_bound_s, predict_cost
from pliant.schedules.family import NestedGroups, build_schedule, halving, shapes
from pliant.schedules.owners import greedy_owners, one_owner, spread_owners
from pliant.spec import Schedule, Topology

__all__ = ["Candidate", "ScheduleRule", "ScheduleSelector", "SelectedSchedule", "SelectorOptions", "candidates"]

_NUM_FINALISTS = 4
"""Shapes that are tried with every rule for owners; the others only with one."""
_NUM_CACHED = 64


@dataclass(frozen=True, kw_only=True)
class ScheduleRule:
    """A way to make a schedule for any bitmap."""

    shape: NestedGroups
    owners: Literal["greedy", "merged", "spread", "one"]
    """Greedy by rank, or with the ranks of a host, and the hosts of a rack, as one; alike in bytes; or all blocks on
    the host with the best link."""

    @property
    def name(self) -> str:
        """Name for tables, such as 'ring', 'tree' or '4d.2r (merged)'."""
        if self.owners == "one":
            return "tree" if self.shape.name == "halving" else f"{self.shape.name} (one)"
        return self.shape.name if self.owners == "greedy" else f"{self.shape.name} ({self.owners})"

    def owners_of(
        self, collective: Collective, topology: Topology, overheads: Overheads, *, quick: bool = False
    ) -> Sequence[int]:
        """Return the rank on which each block's sum is formed; see `greedy_owners` for `quick`."""
        if self.owners == "one":
            return one_owner(collective, _best_rank(topology))
        if self.owners == "spread":
            return spread_owners(collective)
        return greedy_owners(collective, topology, overheads, merged=self.owners == "merged", quick=quick).owners


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A schedule, where it comes from, and what it is predicted to take."""

    name: str
    merged: MergedCollective
    """The super-blocks that the schedule moves."""
    schedule: Schedule
    cost: Cost
    rule: ScheduleRule | None = None
    """How it was made, if by rule."""


@dataclass(frozen=True, kw_only=True)
class SelectedSchedule:
    """The schedule selected for one bitmap."""

    best: Candidate
    bound_s: float
    """`lower_bound_s` of the collective."""


def candidates(merged: MergedCollective, topology: Topology, overheads: Overheads | None = None) -> list[Candidate]:
    """Return schedules of the family with what they are predicted to take, the fastest first.

    Every shape with greedy owners, the best few with the other rules too, and the tree. The same on every rank for
    the same arguments.

    Raises:
        ValueError: The topology is for another number of ranks.

    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    num_ranks = merged.collective.num_ranks
    if topology.num_ranks != num_ranks:
        raise ValueError(f"the collective is over {num_ranks} ranks, but the topology has {topology.num_ranks}.")

    owners: dict[str, Sequence[int]] = {}

    def tried(rule: ScheduleRule) -> Candidate:
        if rule.owners not in owners:
            owners[rule.owners] = rule.owners_of(merged.collective, topology, overheads)
        return _candidate_of(rule, owners[rule.owners], merged, topology, overheads)

    by_shape = [(tried(ScheduleRule(shape=shape, owners="greedy")), shape) for shape in shapes(topology)]
    by_shape.sort(key=lambda pair: _fastest(pair[0]))
    found = [greedy for greedy, _ in by_shape]
    for greedy, shape in by_shape[:_NUM_FINALISTS]:
        others = [tried(ScheduleRule(shape=shape, owners=rule)) for rule in _other_rules(topology)]
        found += [each for each in others if each.cost != greedy.cost]
    found.append(tried(ScheduleRule(shape=halving(topology.num_ranks), owners="one")))
    return sorted(found, key=_fastest)


@dataclass(frozen=True, kw_only=True)
class SelectorOptions:
    """Settings of the selection: when it is repeated, and when the schedule changes."""

    gain: float = 0.05
    """Predicted saving, as a part of the time, below which the recipe in use stays."""
    period: int = 32
    """New bitmaps after which all recipes are tried again."""

    def __post_init__(self) -> None:
        if not 0 <= self.gain < 1 or self.period < 1:
            raise ValueError(
                f"a gain of {self.gain} every {self.period} bitmaps cannot be; use 0 to 1, and at least 1."
            )


class ScheduleSelector:
    """Selects a schedule for each bitmap.

    A bitmap that was seen before gets the same schedule again. For another one the recipe in use is carried out, which
    takes milliseconds. All recipes are tried for the first bitmap and once in a `period`, and another one comes into
    use when it is predicted to save more than `gain`. The selection depends on topology and bitmaps alone, so ranks
    that see the same bitmaps select the same.
    """

    def __init__(
        self, topology: Topology, overheads: Overheads | None = None, options: SelectorOptions | None = None
    ) -> None:
        self.topology = topology
        self.overheads = overheads if overheads is not None else overheads_of(topology)
        self._options = options if options is not None else SelectorOptions()
        self._cache: OrderedDict[Collective, SelectedSchedule] = OrderedDict()
        self._rule: ScheduleRule | None = None
        self._new = 0
        self.num_searches = 0
        """How often all recipes were tried."""

    def choose(self, collective: Collective) -> SelectedSchedule:
        """Return the schedule for this collective, over its super-blocks."""
        if collective in self._cache:
            self._cache.move_to_end(collective)
            return self._cache[collective]
        merged = merge_blocks(collective)
        if self._rule is None or self._new % self._options.period == 0:
            best = self._search(merged)
        else:
            best = self._carry_on(self._rule, merged, quick=True)
        self._new += 1
        self._rule = best.rule
        bound_s = lower_bound_s(merged.collective, self.topology, self.overheads)
        planned = self._cache[collective] = SelectedSchedule(best=best, bound_s=bound_s)
        if len(self._cache) > _NUM_CACHED:
            self._cache.popitem(last=False)
        return planned

    def _search(self, merged: MergedCollective) -> Candidate:
        self.num_searches += 1
        best = candidates(merged, self.topology, self.overheads)[0]
        if self._rule is None:
            return best
        kept = self._carry_on(self._rule, merged)
        return best if best.cost.total_s < (1 - self._options.gain) * kept.cost.total_s else kept

    def _carry_on(self, rule: ScheduleRule, merged: MergedCollective, *, quick: bool = False) -> Candidate:
        owners = rule.owners_of(merged.collective, self.topology, self.overheads, quick=quick)
        return _candidate_of(rule, owners, merged, self.topology, self.overheads)


def _candidate_of(
    rule: ScheduleRule, owners: Sequence[int], merged: MergedCollective, topology: Topology, overheads: Overheads
) -> Candidate:
    schedule = build_schedule(merged.collective, owners, rule.shape)
    predicted = predict_cost(schedule, merged.collective, topology, overheads)
    return Candidate(name=rule.name, merged=merged, schedule=schedule, cost=predicted, rule=rule)


def _fastest(candidate: Candidate) -> tuple[float, int, str]:
    return candidate.cost.total_s, candidate.cost.num_messages, candidate.name


def _other_rules(topology: Topology) -> tuple[Literal["merged", "spread"], ...]:
    nested = topology.racks or len(topology.hosts) < topology.num_ranks
    return ("merged", "spread") if nested else ("spread",)


def _best_rank(topology: Topology) -> int:
    """Return the first rank of the host whose slower direction is the fastest."""

    def rate(k: int) -> float:
        host = topology.hosts[k]
        return min(r if r > 0 else float("inf") for r in (host.send_bytes_per_s, host.receive_bytes_per_s))

    return topology.ranks_of(max(range(len(topology.hosts)), key=lambda k: (rate(k), -k))).start
