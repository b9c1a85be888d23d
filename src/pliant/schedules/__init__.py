"""In which order sends go: collectives as conditions, schedules by rule and by program, proof, cost, execution."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pliant.schedules.background import SolverOptions
from pliant.schedules.collective import Collective, MergedCollective, merge_blocks
from pliant.schedules.cost import Cost, RoundCost, lower_bound_s, predict_cost
from pliant.schedules.family import GroupLevel, NestedGroups, build_schedule, halving, mixed_radix, shapes
from pliant.schedules.owners import Assignment, greedy_owners, one_owner, solve_owners, spread_owners
from pliant.schedules.program import SolvedRounds, solve_rounds
from pliant.schedules.refine import improve_owners, improve_rounds
from pliant.schedules.select import (
    Candidate,
    ScheduleRule,
    ScheduleSelector,
    SelectedSchedule,
    SelectorOptions,
    candidates,
)
from pliant.schedules.verify import ScheduleError, Verified, verify

if TYPE_CHECKING:
    from pliant.schedules.execute import ScheduledAllReduce
    from pliant.schedules.sparse import SparseAllReduce

__all__ = [
    "Assignment",
    "Candidate",
    "ScheduleSelector",
    "SelectorOptions",
    "Collective",
    "Cost",
    "MergedCollective",
    "SolvedRounds",
    "SolverOptions",
    "GroupLevel",
    "SelectedSchedule",
    "ScheduleRule",
    "RoundCost",
    "ScheduleError",
    "ScheduledAllReduce",
    "NestedGroups",
    "SparseAllReduce",
    "Verified",
    "improve_owners",
    "improve_rounds",
    "build_schedule",
    "candidates",
    "predict_cost",
    "greedy_owners",
    "merge_blocks",
    "halving",
    "solve_rounds",
    "lower_bound_s",
    "mixed_radix",
    "one_owner",
    "solve_owners",
    "shapes",
    "spread_owners",
    "verify",
]

# What carries schedules out needs torch, and whoever only makes them must not wait for it.
_LATE = {"ScheduledAllReduce": "pliant.schedules.execute", "SparseAllReduce": "pliant.schedules.sparse"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"pliant.schedules has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_LATE[name]), name)
