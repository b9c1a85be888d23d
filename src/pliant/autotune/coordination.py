"""Exchange among the ranks of a run while its plan is chosen: the first asks and decides, and tells the others."""

import json
from collections.abc import Callable, Sequence

import torch

from pliant.autotune.finalists import Finalist
from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small
from pliant.comm.text_broadcast import broadcast_text
from pliant.engine.trial import PlanOnTrial
from pliant.planner import Genome, Quality, Trial
from pliant.spec import SyncPlan, from_json, to_json

__all__ = [
    "has_failed",
    "holds_on_all",
    "share_finalists",
    "share_number",
    "share_numbers",
    "share_request",
    "slowest_s",
]


def holds_on_all(comm: Comm, mine: bool) -> bool:
    """Say whether something holds on all ranks. Collective."""
    return bool(gather_small(comm, torch.tensor([mine], dtype=torch.uint8)).all())


def has_failed(trial: PlanOnTrial, comm: Comm) -> bool:
    """Say whether a trial has failed on any rank, and note on all why it did on the first of them. Collective."""
    if trial.is_agreed:
        return True
    failed = gather_small(comm, torch.tensor([bool(trial.why)], dtype=torch.uint8)).flatten().tolist()
    if not any(failed):
        return False
    trial.agree(broadcast_text(f"rank {comm.rank}: {trial.why}", comm, failed.index(1)))
    return True


def slowest_s(comm: Comm, mine_s: Sequence[float]) -> list[float]:
    """Return the longest of all ranks' times, one by one. Collective."""
    return gather_small(comm, torch.tensor(mine_s, dtype=torch.float64)).amax(0).tolist()


def share_number(comm: Comm, mine: float) -> float:
    """Return the first rank's number on all ranks. Collective."""
    return share_numbers(comm, [mine])[0]


def share_numbers(comm: Comm, mine: Sequence[float]) -> list[float]:
    """Return the first rank's numbers on all ranks. Collective."""
    numbers = torch.tensor(mine, dtype=torch.float64)
    comm.broadcast(numbers, 0).wait()
    return numbers.tolist()


def share_request(
    comm: Comm, asked: tuple[Genome, float] | None, plan_of: Callable[[Genome], SyncPlan]
) -> tuple[SyncPlan, float] | None:
    """Share the first rank's wish: a plan to try, and the step time above which its trial ends."""
    text = "" if asked is None else json.dumps([to_json(plan_of(asked[0])), min(asked[1], 1e9)])
    text = broadcast_text(text, comm)
    if not text:
        return None
    plan, limit_s = json.loads(text)
    return from_json(SyncPlan, plan), limit_s


def share_finalists(
    comm: Comm, finalists: Sequence[Trial], quality: Quality, plan_of: Callable[[Genome], SyncPlan]
) -> list[Finalist]:
    """Share the first rank's best plans."""
    mine = [
        (
            to_json(plan_of(trial.genes)),
            all(gene.exact for gene in trial.genes.genes),
            quality.factor(trial.genes),
            trial.step_s,
        )
        for trial in finalists
    ]
    return [
        Finalist(from_json(SyncPlan, text), *figures)
        for text, *figures in json.loads(broadcast_text(json.dumps(mine), comm))
    ]
