"""Short trials of a few settings on a sharded model, each in force for some steps of the training."""

import math
import statistics
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pliant.algorithms.sharding import differences, sharded
from pliant.comm.base import Comm
from pliant.engine.attachments import AttachedTuner
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.plan_resolution import resolve_plan
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.run import Run
from pliant.planner.frontier import FRONTIER_LIMITS
from pliant.planner.quality import MEASURED_WITH
from pliant.spec import Exchange, SyncPlan
from pliant.spec.units import format_time

__all__ = ["ShardedSetting", "ShardedTrials", "sharded_candidates"]

_UNCOUNTED, _COUNTED = 2, 3
"""Steps of a trial: those after the switch are not timed."""
_SLOW = 1.5
"""Times of plain training above which a trial ends after its first timed step."""
_CODED_RATIO = 1.04
"""Ratio of steps of 8 and 4 bits in gradients, measured with SGD on whole models (`planner.quality`)."""


@dataclass(frozen=True, kw_only=True)
class ShardedSetting:
    """Setting to try, and what came of it."""

    name: str
    plan: SyncPlan
    steps_ratio: float
    risk: str
    step_s: float = math.nan


def sharded_candidates(held: RelaxedModel, quality: float, *, unmeasured: bool) -> list[ShardedSetting]:
    """Return the settings to try on a model, the mildest first.

    Args:
        held: The model and its optimizers.
        quality: How many times the steps a plan may need.
        unmeasured: Whether coded gradients and weights are tried with other optimizers than SGD.

    """
    optimizer = optimizer_name(held.optimizer)
    rounded, coded = "rounding of gradients to 16 bits", f"{_CODED_RATIO} times the steps, of gradients, with SGD"
    coded += "; what coded weights cost in steps was not measured"
    coded = coded if optimizer == MEASURED_WITH else f"not measured with {optimizer}; {coded}"
    rows: list[tuple[str, Exchange, float, str]] = [
        ("exact", sharded(gradients="allreduce", weights="allreduce"), 1.0, "none: exact"),
        ("gradients in 16 bits", sharded(gradients="bf16", weights="allreduce"), 1.0, rounded),
    ]
    if quality > 1 and (unmeasured or optimizer == MEASURED_WITH):
        rows += [
            ("8 bits", sharded(gradients="bytegrad", weights="bytegrad", regather=False), _CODED_RATIO, coded),
            ("4 bits", sharded(gradients="int4", weights=differences("int4")), _CODED_RATIO, coded),
        ]
    if held.sharded is not None and held.sharded.has_replicas:
        names = (("allreduce", 1.0, "none: exact"), ("bf16", 1.0, rounded), ("int4", _CODED_RATIO, coded))
        rows = [
            (f"replicas in {name}", sharded(replicas=name), ratio, risk)
            for name, ratio, risk in names
            if ratio == 1 or (quality > 1 and (unmeasured or optimizer == MEASURED_WITH))
        ]
    return [
        ShardedSetting(name=name, plan=held.resolve(resolve_plan(node, held.optimizer)), steps_ratio=ratio, risk=risk)
        for name, node, ratio, risk in rows
    ]


class ShardedTrials(AttachedTuner):
    """Puts settings in force in turn, times each over a few steps, and keeps the best.

    The slowest rank's time counts, so that all ranks choose alike. Bytes, beside the plans': 8 for each timed step.

    Args:
        run: The run.
        comm: Over a group that nothing else uses.
        candidates: At least one.
        base_s: Step time of plain training.

    """

    keeps_from_joining = "trials measure all ranks in every step"

    def __init__(self, run: Run, comm: Comm, candidates: Sequence[ShardedSetting], base_s: float) -> None:
        self._run, self._comm, self._base_s = run, comm, base_s
        self._tried = list(candidates)
        self.best: ShardedSetting | None = None
        """The fastest to the same accuracy; None as long as trials go on."""
        self.explanation = "Settings of the sharded model are still being tried."
        self._work = self._try_all()
        next(self._work)

    def after_step(self, step: int) -> None:
        """Go on; a plan may be switched in it. Collective."""
        next(self._work, None)

    def close(self) -> None:
        """Stop, whatever is being tried."""
        self._work.close()
        self._comm.close()

    def rows(self) -> list[dict[str, Any]]:
        """Return the frontier of what was tried, as a JSON file has it."""
        return [
            {
                "limit": limit,
                "plan": found.name,
                "step_s": found.step_s,
                "steps_ratio": found.steps_ratio,
                "speedup": self._base_s / (found.step_s * found.steps_ratio),
                "loses": False,
                "risk": found.risk,
            }
            for limit, found in self._points()
        ]

    def text(self) -> str:
        """Return the frontier in words."""
        lines = [
            f"Frontier, of {len(self._tried)} settings that were tried (FSDP2: {format_time(self._base_s)} a step):"
        ]
        for limit, found in self._points():
            what = "exact" if limit == 1 else f"up to {limit:g}x the steps"
            lines.append(
                f"  {what:<21} step {format_time(found.step_s)}, {found.steps_ratio:.2f}x the steps, "
                f"{self._base_s / (found.step_s * found.steps_ratio):.3g}x sooner than FSDP2: {found.name}; risk: "
                f"{found.risk}"
            )
        return "\n".join(lines)

    def _points(self) -> list[tuple[float, ShardedSetting]]:
        return [(limit, _fastest([c for c in self._tried if c.steps_ratio <= limit])) for limit in FRONTIER_LIMITS]

    def _try_all(self) -> Generator[None]:
        yield
        for k, candidate in enumerate(self._tried):
            self._run.switch(candidate.plan)
            for _ in range(_UNCOUNTED):
                yield
            steps_s: list[float] = []
            while len(steps_s) < _COUNTED and (not steps_s or min(steps_s) <= _SLOW * self._base_s):
                start_s = time.perf_counter()
                yield
                worst = torch.tensor([time.perf_counter() - start_s], dtype=torch.float64)
                self._comm.all_reduce(worst, "max").wait()
                steps_s.append(float(worst))
            self._tried[k] = replace(candidate, step_s=statistics.median(steps_s))
        best = _fastest(self._tried)
        self._run.switch(best.plan)
        self.best = best
        tried = ", ".join(f"{c.name} {format_time(c.step_s)}" for c in self._tried)
        self.explanation = f"Step times of the settings, each over up to {_COUNTED} steps of the training: {tried}."


def _fastest(candidates: Sequence[ShardedSetting]) -> ShardedSetting:
    return min(candidates, key=lambda each: each.step_s * each.steps_ratio)
