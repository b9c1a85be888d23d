"""Tasks that can be learned: a face that images and text share, and how a model is judged on all ranks together."""

import functools
import math
from typing import ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pliant_bench.harness.metric import Metric

__all__ = ["TrainingTask", "sample_batch", "evaluate", "steps_per_epoch"]

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


def evaluate(task: TrainingTask, model: nn.Module, num: int) -> float:
    """Return the metric over the first `num` held-out items; each rank judges its part. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for first in range(rank * _BLOCK, num, size * _BLOCK):
            sums += torch.tensor(task.tally(model, first, min(first + _BLOCK, num)), dtype=torch.float64)
    model.train()
    dist.all_reduce(sums)
    mean = float(sums[0] / sums[1])
    return mean if task.metric.higher else math.exp(mean)


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
