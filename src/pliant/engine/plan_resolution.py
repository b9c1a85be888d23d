"""From what a user says to one plan that all ranks share."""

from pathlib import Path

import torch
from torch.optim import Optimizer

from pliant.algorithms.by_name import plan_for_name
from pliant.algorithms.grammar import parse
from pliant.algorithms.inputs import AlgorithmLike
from pliant.algorithms.plans import plan_of
from pliant.algorithms.registry import algorithm_named, custom_names
from pliant.comm.agreement import require_same
from pliant.comm.base import Comm
from pliant.spec import SyncPlan, load

__all__ = ["PlanLike", "resolve_plan", "require_plan"]

PlanLike = str | Path | SyncPlan | AlgorithmLike


def resolve_plan(what: PlanLike, optimizer: Optimizer) -> SyncPlan:
    """Return the plan that a name, a text of the grammar, a path, a plan or an algorithm value stands for."""
    if isinstance(what, SyncPlan):
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".json")):
        return load(SyncPlan, what)
    if isinstance(what, str):
        return plan_for_name(algorithm_named(what, optimizer) if what.isidentifier() else parse(what), what)
    return plan_of(what)


def require_plan(plan: SyncPlan, comm: Comm, device: torch.device) -> None:
    """Raise ValueError on all ranks if they hold different plans, or if some cannot carry it out. Collective."""
    cure = f"give all ranks the same name, settings or file (here: {plan.hash})"
    require_same(comm, "the plan", plan.hash, device, cure=cure)
    own = custom_names(plan)
    known = "all" if all(own.values()) else None
    cure = f"call pliant.register() for {', '.join(own)} with the same builder on every rank before relax()"
    require_same(comm, "the set of known algorithms", known, device, cure=cure)
