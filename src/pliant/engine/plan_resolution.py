"""Resolution of what a user gives, such as a name or a path, to one plan that all ranks share."""

from pathlib import Path

import torch
from torch.optim import Optimizer

from pliant.algorithms.by_name import plan_for_name
from pliant.algorithms.grammar import parse
from pliant.algorithms.inputs import AlgorithmLike
from pliant.algorithms.plans import plan_of
from pliant.algorithms.registry import algorithm_named, custom_names, why_unknown
from pliant.comm.agreement import require_all_same
from pliant.comm.base import Comm
from pliant.engine.relaxed_model import RelaxedModel
from pliant.spec import Sharded, SyncPlan, load

__all__ = ["PlanLike", "require_plan", "resolve_plan", "torchs_own"]

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


def torchs_own(relaxed: RelaxedModel) -> SyncPlan:
    """Return the plan that leaves a model to torch: DDP's all-reduce, or FSDP2's own collectives."""
    return resolve_plan("allreduce" if relaxed.sharded is None else Sharded(), relaxed.optimizer)


def require_plan(plan: SyncPlan, comm: Comm, device: torch.device) -> None:
    """Raise ValueError on all ranks if they hold different plans, or if some cannot carry it out. Collective."""
    own = custom_names(plan)
    known = all(own.values())
    cure = f"call pliant.register() for {', '.join(own)} with the same builder on every rank before relax()"
    same_plan = "the plan", plan.hash, f"give all ranks the same name, settings or file (here: {plan.hash})"
    all_known = "the set of known algorithms", "all" if known else None, cure if known else why_unknown(cure)
    require_all_same(comm, [same_plan, all_known], device)
