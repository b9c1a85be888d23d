"""One training of the laboratory of quality: all workers are threads of this process, joined by the engine itself."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn

import pliant
from pliant.comm import RankContext
from pliant.comm.base import CommError
from pliant.engine.plan_resolution import PlanLike
from pliant_bench.lab.optimizers import make_optimizers, require_optimizer
from pliant_bench.lab.tasks import LabTask

__all__ = [
    "DECAYS",
    "TIMEOUT_S",
    "Outcome",
    "Point",
    "RankOutcome",
    "Recipe",
    "Worker",
    "first_model",
    "outcome_of",
    "rate_factor",
    "train",
]

TIMEOUT_S = 600.0
"""Longest wait of a communication: a rank waits while another one judges."""
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
"""Name -> share of the fall that is left, of the share of the steps that is over."""
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
    """Name in `OPTIMIZERS`, or of an optimizer of Pliant."""
    lr: float
    """Largest learning rate."""
    decay: str = "linear"
    """How the learning rate comes down: one of `DECAYS`."""
    seed: int
    """Of weights and of the order of batches."""
    ranks: int = 4
    last_step: int = 0
    """Steps to take at most; 0: those of the task's schedule."""
    every: int = 10
    """Steps between two points of the curve."""
    target: float | None = None
    """Held-out loss at which a training ends early."""
    keep_weights: bool = False
    """Whether the outcome has each worker's weights."""

    def __post_init__(self) -> None:
        require_optimizer(self.optimizer)
        if self.decay not in DECAYS:
            raise ValueError(f"there is no decay {self.decay!r} of the learning rate; there are {', '.join(DECAYS)}.")
        if min(self.ranks, self.every) < 1 or self.last_step < 0 or not self.lr > 0:
            raise ValueError(
                "ranks and every must be at least 1, last_step at least 0 and lr positive, but they are "
                f"{self.ranks}, {self.every}, {self.last_step} and {self.lr}."
            )


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """Result of a training on one rank."""

    curve: list[Point]
    """Ends early at the target, or where a loss or a gradient was not finite."""
    taken: int
    """Steps."""
    diverged: bool
    sent_bytes: int
    """Of all steps, as `run.stats()` counts them."""
    exchanges: int
    """Steps in which it has sent something."""
    weights: dict[str, Tensor]
    """State of the model at the end, before the run is closed; empty if it is not kept, or something was not finite."""
    lost: str = ""
    """Error with which an exchange has ended, since another rank had; "" without one."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a training."""

    curve: list[Point]
    diverged: bool
    sent_bytes: float
    """Of a step, all workers together."""
    exchanges: int
    """Steps in which the first worker has sent something."""
    wall_s: float
    weights: list[dict[str, Tensor]]
    """Each worker's."""


def rate_factor(step: int, steps: int, decay: str = "linear") -> float:
    """Return the share of the largest learning rate in a step: a tenth of the steps up, then down to a tenth of it.

    After `steps` it stays there. It depends on nothing but the step, so all algorithms have the same rates, however
    long they need.
    """
    warm = max(steps // 10, 1)
    progress = min(max(step - warm, 0) / max(steps - warm, 1), 1.0)
    return min((step + 1) / warm, _FLOOR + (1 - _FLOOR) * DECAYS[decay](progress))


def train(task: LabTask, what: PlanLike, recipe: Recipe) -> Outcome:
    """Train under a plan from the seed's weights, with the seed's batches, on threads of this process.

    Each thread is a rank with a model, an optimizer and a run of its own, so the exchange is that of the product. What
    is judged is `Run.consolidate()`: the mean over ranks where they differ.

    Raises:
        ValueError: The plan cannot train this model, or its optimizer.

    """
    start_s = time.perf_counter()
    first = first_model(task, recipe.seed)
    ranks = pliant.run_world(
        recipe.ranks, lambda place: Worker(task, recipe, first, place).train(what), timeout_s=TIMEOUT_S
    )
    return outcome_of(ranks, time.perf_counter() - start_s)


def first_model(task: LabTask, seed: int) -> nn.Module:
    """Return the model with which all ranks begin."""
    torch.manual_seed(seed)
    return task.model()


def outcome_of(ranks: Sequence[RankOutcome], wall_s: float) -> Outcome:
    """Return the result of a training of the results of its ranks.

    Raises:
        RuntimeError: An exchange has failed, though no rank has diverged.

    """
    diverged, lost = any(rank.diverged for rank in ranks), [rank.lost for rank in ranks if rank.lost]
    if lost and not diverged:
        raise RuntimeError(lost[0])
    return Outcome(
        curve=ranks[0].curve,
        diverged=diverged,
        sent_bytes=sum(rank.sent_bytes for rank in ranks) / max(*(rank.taken for rank in ranks), 1),
        exchanges=ranks[0].exchanges,
        wall_s=wall_s,
        weights=[rank.weights for rank in ranks],
    )


class Worker:
    """One rank of a training.

    Args:
        task: What is learned.
        recipe: How.
        first: Model to begin with, which is copied.
        place: Rank, and the groups over which it talks.
        device: Where the model is.

    """

    def __init__(
        self, task: LabTask, recipe: Recipe, first: nn.Module, place: RankContext, device: str = "cpu"
    ) -> None:
        self._task, self._recipe, self._place, self._device = task, recipe, place, device
        self._model, self._judged = (copy.deepcopy(first).to(device) for _ in range(2))
        self._optimizers = make_optimizers(recipe.optimizer, self._model, recipe.lr, self._mean)
        self._curve: list[Point] = []
        self._taken = self._sent_bytes = self._exchanges = 0
        self._diverged, self._kept = False, dict[str, Tensor]()

    def train(self, what: PlanLike) -> RankOutcome:
        """Train to the end; where weights are exchanged, a rank may diverge alone, which ends the others' exchanges."""
        lost = ""
        try:
            with pliant.relax(
                self._model,
                self._optimizers,
                what,
                group=self._place.process_group,
                timeout_s=TIMEOUT_S,
                agreement_every=0,
                transport="auto" if self._device == "cpu" else "host",
            ) as run:
                self._go_on(run)
        except (pliant.NonFiniteGradientError, CommError) as error:
            self._place.comm.hang_up()  # for those that wait for a mean
            self._diverged = self._diverged or isinstance(error, pliant.NonFiniteGradientError)
            lost = "" if self._diverged else str(error)
        return RankOutcome(
            curve=self._curve,
            taken=self._taken,
            diverged=self._diverged,
            sent_bytes=self._sent_bytes,
            exchanges=self._exchanges,
            weights=self._kept,
            lost=lost,
        )

    def _go_on(self, run: pliant.Run) -> None:
        last = self._recipe.last_step or self._task.steps
        while self._taken < last and not self._has_ended():
            before = run.stats()["sent_bytes"]
            self._step(run.model)
            self._count(run.stats()["sent_bytes"] - before)
            if self._taken % self._recipe.every == 0 or self._taken == last:
                self._judge(run)
        if not self._diverged:
            run.state_dict()  # what is on its way arrives
            self._kept = self._weights() if self._recipe.keep_weights else {}

    def _step(self, model: nn.Module) -> None:
        rate = self._recipe.lr * rate_factor(self._taken, self._task.steps, self._recipe.decay)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
        x, y = self._task.batch_of(self._taken, self._place.rank, self._place.size, self._recipe.seed)
        self._task.loss(model(x.to(self._device)), y.to(self._device)).backward()
        for optimizer in self._optimizers:
            optimizer.step()
        self._taken += 1

    def _count(self, sent_bytes: int) -> None:
        """Note what a step has sent; what judging the weights sends is not of the exchange."""
        self._sent_bytes += sent_bytes
        self._exchanges += sent_bytes > 0

    def _judge(self, run: pliant.Run) -> None:
        """Let rank 0 judge the weights, and tell all. Collective."""
        state, told = run.consolidate(), torch.zeros(1, dtype=torch.float64)
        if self._place.rank == 0:
            self._judged.load_state_dict(state)
            told[0] = self._task.judge(self._judged)
        self._place.comm.all_reduce(told).wait()
        self._curve.append({"step": self._taken, "loss": float(told)})
        self._diverged = self._diverged or not bool(torch.isfinite(told))

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self._model.state_dict().items()}

    def _mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return means over all ranks. Collective."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu()
        self._place.comm.all_reduce(flat).wait()
        means = flat.div_(self._place.size).to(self._device).split([tensor.numel() for tensor in tensors])
        return [mean.view_as(tensor) for mean, tensor in zip(means, tensors, strict=True)]

    def _has_ended(self) -> bool:
        target = self._recipe.target
        return self._diverged or (target is not None and bool(self._curve) and self._curve[-1]["loss"] <= target)
