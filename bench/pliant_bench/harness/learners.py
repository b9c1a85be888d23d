"""Models with their data, which each arm trains in its own way: made-up batches, real data, or what a user brings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pliant.profiling import OwnTraining, load_own_training
from pliant_bench.harness.arms import Arm, prepare
from pliant_bench.harness.metric import METRICS, Metric
from pliant_bench.harness.setup import Setup
from pliant_bench.harness.tasks import TrainingTask, evaluate
from pliant_bench.models import TASKS, TimingTask

__all__ = ["Learner", "LearnsOwn", "LearnsTask", "TimesTask", "TrainedLearner", "timed_learner"]

_TIMED_LR = 1e-3


class Learner(Protocol):
    """Model with data, of which each arm gets a copy."""

    def arm(self, name: str, seed: int, total_steps: int) -> Arm:
        """Return a new arm, from the same weights for the same seed. Collective."""
        ...

    def loss(self, arm: Arm, seed: int, step: int) -> Tensor:
        """Return the loss of this rank's batch of a step."""
        ...


class TrainedLearner(Learner, Protocol):
    """Learner that is trained to a target."""

    @property
    def metric(self) -> Metric:
        """Figure by which it is judged."""
        ...

    @property
    def decays(self) -> bool:
        """Whether learning rates follow the laboratory's schedule."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which all ranks see all data; 0 where nobody knows."""
        ...

    def judge(
        self, arm: Arm, losses: Sequence[float], *, last: bool, states: Sequence[dict[str, Tensor]]
    ) -> list[float]:
        """Return the metric at points: of all held-out data at the last of a curve, of some before. Collective.

        Args:
            arm: What is judged.
            losses: Mean loss of this rank's batches until each point since the one before.
            last: Whether this is the last point.
            states: Weights and buffers of all ranks at each point; empty: as they are now.

        """
        ...


@dataclass(frozen=True, kw_only=True)
class TimesTask:
    """One batch of made-up data, again and again: for step times."""

    task: TimingTask
    batch: tuple[Tensor, Tensor]
    bucket_mb: float

    def arm(self, name: str, seed: int, total_steps: int) -> Arm:
        torch.manual_seed(seed)
        return prepare(name, self.task.model(), _TIMED_LR, total_steps, self.bucket_mb)

    def loss(self, arm: Arm, seed: int, step: int) -> Tensor:
        del seed, step
        return self.task.loss(arm.model, self.batch)


@dataclass(frozen=True, kw_only=True)
class LearnsTask:
    """Real data of the laboratory, of which the ranks of a step get disjoint batches."""

    task: TrainingTask
    batch: int
    """Items per rank and step."""
    bucket_mb: float
    lr: float = 0.0
    """Largest learning rate; 0: the task's."""
    decays = True

    @property
    def metric(self) -> Metric:
        return self.task.metric

    @property
    def steps_per_epoch(self) -> int:
        return self.task.steps_per_epoch(dist.get_world_size(), self.batch)

    def arm(self, name: str, seed: int, total_steps: int) -> Arm:
        torch.manual_seed(seed)
        return prepare(
            name, self.task.model(), self.lr or self.task.lr, total_steps, self.bucket_mb, adam=self.task.adam
        )

    def loss(self, arm: Arm, seed: int, step: int) -> Tensor:
        x, y = self.task.batch(step, dist.get_rank(), dist.get_world_size(), self.batch, seed)
        return cross_entropy(arm.model(x).flatten(0, -2), y.flatten())

    def judge(
        self, arm: Arm, losses: Sequence[float], *, last: bool, states: Sequence[dict[str, Tensor]]
    ) -> list[float]:
        del losses
        num = self.task.num_held_out
        return evaluate(self.task, map(arm.evaluated, states), num if last else min(self.task.probe, num))


@dataclass(frozen=True, kw_only=True)
class LearnsOwn:
    """Training that a user brings; each arm gets a model, an optimizer and batches of its own from the function."""

    where: str
    """Function that makes it, as in my:make; see `pliant.profiling.load_own_training`."""
    bucket_mb: float
    metric = METRICS["own"]
    decays = False
    steps_per_epoch = 0

    def arm(self, name: str, seed: int, total_steps: int) -> Arm:
        torch.manual_seed(seed)
        own = load_own_training(self.where)
        arm = prepare(name, own.model, 0.0, total_steps, self.bucket_mb, optimizer=own.optimizer)
        arm.own = own
        return arm

    def loss(self, arm: Arm, seed: int, step: int) -> Tensor:
        del seed
        return _own(arm).loss(arm.model, step)

    def judge(
        self, arm: Arm, losses: Sequence[float], *, last: bool, states: Sequence[dict[str, Tensor]]
    ) -> list[float]:
        """Return the mean over ranks of the user's metric, or without one of the losses since the points before."""
        del last
        values, own = list(losses), _own(arm)
        if own.metric is not None:
            values = [_judged(own.metric, arm.evaluated(state)) for state in states]
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return (total / dist.get_world_size()).tolist()


def timed_learner(model_name: str, setup: Setup) -> Learner:
    """Return what is timed under a name: one of the laboratory's models, or the user's."""
    if setup.own:
        return LearnsOwn(where=setup.own, bucket_mb=setup.bucket_mb)
    task = TASKS[model_name]
    batch = task.batch(torch.Generator().manual_seed(dist.get_rank()))
    return TimesTask(task=task, batch=batch, bucket_mb=setup.bucket_mb)


def _judged(metric: Callable[[nn.Module], float], model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        value = float(metric(model))
    model.train()
    return value


def _own(arm: Arm) -> OwnTraining:
    if arm.own is None:
        raise ValueError(f"the arm {arm.name} has no training of a user's; make it with LearnsOwn.arm().")
    return arm.own
