"""From what a user says to one plan that all ranks share."""

from pathlib import Path

import torch
from torch.optim import Optimizer

from pliant.algorithms.base import Algorithm
from pliant.algorithms.build import named
from pliant.algorithms.partition import plan_of
from pliant.comm.base import Comm
from pliant.spec import SyncPlan, load

__all__ = ["What", "agree_on", "plan_from"]

What = str | Path | SyncPlan | Algorithm


def plan_from(what: What, optimizer: Optimizer) -> SyncPlan:
    """Return the plan that a name, a path, a plan or an algorithm value stands for."""
    if isinstance(what, SyncPlan):
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".json")):
        return load(SyncPlan, what)
    if isinstance(what, str):
        return plan_of(named(what, optimizer), what)
    return plan_of(what)


def agree_on(plan: SyncPlan, comm: Comm, device: torch.device) -> None:
    """Raise ValueError on all ranks if they hold different plans."""
    mine = torch.tensor([int(plan.hash, 16) >> 1], dtype=torch.int64, device=device)  # (1,)
    hashes = torch.empty(comm.size, dtype=torch.int64, device=device)
    comm.all_gather(hashes, mine).wait()
    odd = [rank for rank, value in enumerate(hashes.tolist()) if value != int(hashes[0])]
    if odd:
        raise ValueError(
            f"ranks {', '.join(map(str, odd))} ask for another plan than rank 0 (this rank: {plan.hash}); "
            "give all ranks the same name, settings or file."
        )
