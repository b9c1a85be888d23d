"""Tasks that can be learned: a face that images and text share, and how a model is judged on all ranks together."""

import functools
import math
from collections.abc import Iterable
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pliant_bench.harness.metric import Metric

__all__ = ["TrainingTask", "evaluate", "sample_batch", "steps_per_epoch"]

_BLOCK = 250
"""Items of held-out data that are judged at once; ranks take turns at blocks."""


class TrainingTask(Protocol):
    """Data, the model that learns from it, and how."""

    metric: ClassVar[Metric]
    lr: ClassVar[float]
    """Largest learning rate, the same for all arms."""
    adam: ClassVar[bool]
    """Whether AdamW learns it, or SGD with momentum 0.9."""
    probe: ClassVar[int]
    """Held-out items for the points of a curve; the end of a training is judged by all."""

    @property
    def num_held_out(self) -> int:
        """Items to judge by."""
        ...

    def model(self) -> nn.Module:
        """Return a new model; the same for the same seed of torch."""
        ...

    def batch(self, step: int, rank: int, size: int, num: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return a rank's inputs and targets of a step; over an epoch each item goes to at most one rank and step."""
        ...

    def steps_per_epoch(self, size: int, num: int) -> int:
        """Return the number of steps in which all ranks have whole batches."""
        ...

    def tally(self, model: nn.Module, first: int, last: int) -> tuple[float, float]:
        """Return what the held-out items from first to before last come to, and their weight: right ones, or nats."""
        ...


def evaluate(task: TrainingTask, models: Iterable[nn.Module], num: int) -> list[float]:
    """Return the metric of each model over the first `num` held-out items; each rank judges its part. Collective."""
    totals = torch.tensor([_tally_of_rank(task, model, num) for model in models], dtype=torch.float64)
    dist.all_reduce(totals)
    means = (totals[:, 0] / totals[:, 1]).tolist()
    return means if task.metric.higher else [math.exp(mean) for mean in means]


def _tally_of_rank(task: TrainingTask, model: nn.Module, num: int) -> tuple[float, float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        blocks = [task.tally(model, k, min(k + _BLOCK, num)) for k in range(rank * _BLOCK, num, size * _BLOCK)]
    model.train()
    return sum(right for right, _ in blocks), sum(weight for _, weight in blocks)


def steps_per_epoch(num_items: int, size: int, num: int) -> int:
    """Return the number of steps in which all ranks have whole batches."""
    return max(num_items // (num * size), 1)


def sample_batch(num_items: int, step: int, rank: int, size: int, num: int, seed: int) -> Tensor:
    """Return the items of a rank's batch, int64 (num,); over an epoch each goes to at most one rank and step."""
    epoch, within = divmod(step, steps_per_epoch(num_items, size, num))
    at = (within * size + rank) * num
    return _order(num_items, seed, epoch)[at : at + num]


@functools.lru_cache(maxsize=2)
def _order(num_items: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(num_items, generator=torch.Generator().manual_seed(seed * 1000 + epoch))
