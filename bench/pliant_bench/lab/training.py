"""One training of the laboratory of quality: all workers are threads of this process, joined by the engine itself."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import pliant
from pliant.comm import RankContext
from pliant.engine.plan_resolution import PlanLike
from pliant_bench.lab.tasks import LabTask

__all__ = ["OPTIMIZERS", "Outcome", "Point", "Recipe", "rate_factor", "train"]

OPTIMIZERS: dict[str, Callable[[nn.Module, float], Optimizer]] = {
    "SGD": lambda model, lr: SGD(model.parameters(), lr=lr, momentum=0.9),
    "AdamW": lambda model, lr: AdamW(model.parameters(), lr=lr),
}
"""Name of an optimizer's class -> what makes it of a model and a learning rate."""

_TIMEOUT_S = 600.0
_FLOOR = 0.1
"""Share of the largest learning rate that is left at the end of the schedule."""


class Point(TypedDict):
    """Held-out loss after so many steps."""

    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training that all algorithms of a comparison share."""

    optimizer: str
    """Name in `OPTIMIZERS`."""
    lr: float
    """Largest learning rate."""
    seed: int
    """Of weights and of the order of batches."""
    ranks: int = 4
    last_step: int = 0
    """Steps to take at most; 0: those of the task's schedule."""
    every: int = 10
    """Steps between two points of the curve."""
    target: float | None = None
    """Held-out loss at which a training ends early."""

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"there is no optimizer {self.optimizer!r} in the laboratory; there are {', '.join(OPTIMIZERS)}."
            )
        if min(self.ranks, self.every) < 1 or self.last_step < 0 or not self.lr > 0:
            raise ValueError(
                "ranks and every must be at least 1, last_step at least 0 and lr positive, but they are "
                f"{self.ranks}, {self.every}, {self.last_step} and {self.lr}."
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a training."""

    curve: list[Point]
    """Ends early at the target, or where a loss or a gradient was not finite."""
    diverged: bool
    sent_bytes: float
    """Of a step, all workers together, as `run.stats()` counts them; with what judging the weights sends."""
    wall_s: float
    weights: list[dict[str, Tensor]]
    """Each worker's state of the model at the end, before the run is closed."""


def rate_factor(step: int, steps: int) -> float:
    """Return the share of the largest learning rate in a step: a tenth of the steps up, then straight to a tenth.

    After `steps` it stays there. It depends on nothing but the step, so all algorithms have the same rates, however
    long they need.
    """
    warm = max(steps // 10, 1)
    falling = 1 - (1 - _FLOOR) * (step - warm) / max(steps - warm, 1)
    return min((step + 1) / warm, max(falling, _FLOOR))


def train(task: LabTask, what: PlanLike, recipe: Recipe) -> Outcome:
    """Train under a plan from the seed's weights, with the seed's batches, on threads of this process.

    Each thread is a rank with a model, an optimizer and a run of its own, so the exchange is that of the product. What
    is judged is `Run.consolidate()`: the mean over ranks where they differ.

    Raises:
        ValueError: The plan cannot train this model, or its optimizer.

    """
    torch.manual_seed(recipe.seed)
    first = task.model()
    start_s = time.perf_counter()
    workers = pliant.run_world(
        recipe.ranks, lambda place: _Worker(task, recipe, first, place).train(what), timeout_s=_TIMEOUT_S
    )
    taken = max(worker.taken for worker in workers)
    return Outcome(
        curve=workers[0].curve,
        diverged=any(worker.diverged for worker in workers),
        sent_bytes=sum(worker.sent_bytes for worker in workers) / max(taken, 1),
        wall_s=time.perf_counter() - start_s,
        weights=[worker.weights for worker in workers],
    )


class _Worker:
    """One rank of a training."""

    def __init__(self, task: LabTask, recipe: Recipe, first: nn.Module, place: RankContext) -> None:
        self._task = task
        self._recipe = recipe
        self._place = place
        self._model, self._judged = copy.deepcopy(first), copy.deepcopy(first)
        self._optimizer = OPTIMIZERS[recipe.optimizer](self._model, recipe.lr)
        self.curve: list[Point] = []
        self.taken = 0
        self.sent_bytes = 0.0
        self.diverged = False
        self.weights: dict[str, Tensor] = {}

    def train(self, what: PlanLike) -> "_Worker":
        """Train to the end; return itself."""
        last = self._recipe.last_step or self._task.steps
        group = self._place.process_group
        with pliant.relax(
            self._model, self._optimizer, what, group=group, timeout_s=_TIMEOUT_S, agreement_every=0
        ) as run:
            try:
                while self.taken < last and not self._has_ended():
                    self._step(run.model)
                    if self.taken % self._recipe.every == 0 or self.taken == last:
                        self._judge(run)
            except pliant.NonFiniteGradientError:
                self.diverged = True
            self.sent_bytes = run.stats()["sent_bytes"]
            if not self.diverged:
                run.state_dict()  # what is on its way arrives
            self.weights = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        return self

    def _step(self, model: nn.Module) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.lr * rate_factor(self.taken, self._task.steps)
        x, y = self._task.batch_of(self.taken, self._place.rank, self._place.size, self._recipe.seed)
        self._optimizer.zero_grad()
        self._task.loss(model(x), y).backward()
        self._optimizer.step()
        self.taken += 1

    def _judge(self, run: pliant.Run) -> None:
        """Let rank 0 judge the weights, and tell all. Collective."""
        state, told = run.consolidate(), torch.zeros(1, dtype=torch.float64)
        if self._place.rank == 0:
            self._judged.load_state_dict(state)
            told[0] = self._task.judge(self._judged)
        self._place.comm.all_reduce(told).wait()
        self.curve.append({"step": self.taken, "loss": float(told)})
        self.diverged = self.diverged or not bool(torch.isfinite(told))

    def _has_ended(self) -> bool:
        target = self._recipe.target
        return self.diverged or (target is not None and bool(self.curve) and self.curve[-1]["loss"] <= target)
