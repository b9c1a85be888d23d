"""From what a user says to one plan that all ranks share."""

from pathlib import Path

import torch
from torch.optim import Optimizer

from pliant.algorithms.by_name import recommended
from pliant.algorithms.given import AlgorithmLike
from pliant.algorithms.grammar import parse
from pliant.algorithms.plans import plan_of
from pliant.algorithms.registry import named, own_names
from pliant.comm.base import Comm
from pliant.spec import SyncPlan, load

__all__ = ["What", "agree_on", "plan_from"]

What = str | Path | SyncPlan | AlgorithmLike


def plan_from(what: What, optimizer: Optimizer) -> SyncPlan:
    """Return the plan that a name, a text of the grammar, a path, a plan or an algorithm value stands for."""
    if isinstance(what, SyncPlan):
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".json")):
        return load(SyncPlan, what)
    if isinstance(what, str):
        return recommended(named(what, optimizer) if what.isidentifier() else parse(what), what)
    return plan_of(what)


def agree_on(plan: SyncPlan, comm: Comm, device: torch.device) -> None:
    """Raise ValueError on all ranks if they hold different plans, or if some cannot carry it out."""
    own = own_names(plan)
    mine = torch.tensor([int(plan.hash, 16) >> 1, int(all(own.values()))], dtype=torch.int64, device=device)  # (2,)
    table = torch.empty(2 * comm.size, dtype=torch.int64, device=device)
    comm.all_gather(table, mine).wait()
    rows: list[list[int]] = table.view(-1, 2).tolist()
    odd = [rank for rank, (value, _) in enumerate(rows) if value != rows[0][0]]
    if odd:
        raise ValueError(
            f"ranks {', '.join(map(str, odd))} ask for another plan than rank 0 (this rank: {plan.hash}); "
            "give all ranks the same name, settings or file."
        )
    lost = [rank for rank, (_, able) in enumerate(rows) if not able]
    if lost:
        raise ValueError(
            f"the plan has algorithms that are not Pliant's ({', '.join(own)}), and ranks {', '.join(map(str, lost))} "
            "do not know them all; call pliant.register() with the same builder on every rank before relax()."
        )
