"""Schedules of collectives: conditions, families, integer programs, verification, predicted cost, execution."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pliant.schedules.beside import Improving
from pliant.schedules.choose import Candidate, Chooser, Choosing, Planned, Recipe, candidates
from pliant.schedules.collective import Collective, Grouped, group
from pliant.schedules.cost import Cost, RoundCost, cost, lower_bound_s
from pliant.schedules.family import Level, Shape, build, halving, mixed_radix, shapes
from pliant.schedules.improving import better_owners, better_rounds
from pliant.schedules.owners import Assignment, greedy_owners, one_owner, program_owners, spread_owners
from pliant.schedules.program import Improved, improve
from pliant.schedules.verify import ScheduleError, Verified, verify

if TYPE_CHECKING:
    from pliant.schedules.execute import ScheduledSum
    from pliant.schedules.sparse import SparseSum

__all__ = [
    "Assignment",
    "Candidate",
    "Chooser",
    "Choosing",
    "Collective",
    "Cost",
    "Grouped",
    "Improved",
    "Improving",
    "Level",
    "Planned",
    "Recipe",
    "RoundCost",
    "ScheduleError",
    "ScheduledSum",
    "Shape",
    "SparseSum",
    "Verified",
    "better_owners",
    "better_rounds",
    "build",
    "candidates",
    "cost",
    "greedy_owners",
    "group",
    "halving",
    "improve",
    "lower_bound_s",
    "mixed_radix",
    "one_owner",
    "program_owners",
    "shapes",
    "spread_owners",
    "verify",
]

# What carries schedules out needs torch, and whoever only makes them must not wait for it.
_LATE = {"ScheduledSum": "pliant.schedules.execute", "SparseSum": "pliant.schedules.sparse"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"pliant.schedules has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_LATE[name]), name)
