"""Short trainings under every algorithm: gradients are the data, the same to the bit on every device."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for

__all__ = ["EVERY", "Weighted", "default_group", "trained"]

EVERY = ALGORITHMS | BETWEEN_STEPS
_BUCKET_MB = 0.02
"""Two of the weights have a bucket of their own, so that exchanges of buckets overlap."""


class Weighted(nn.Module):
    """The sum of weights times data: the gradient is the data."""

    SHAPES = (64, 48), (3000,), (10, 10), (130, 70)

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(shape) for shape in self.SHAPES])

    def forward(self, *data: Tensor) -> Tensor:
        return torch.stack([(w * x).sum() for w, x in zip(self.weights, data, strict=True)]).sum()


@contextmanager
def default_group(backend: str) -> Iterator[dist.ProcessGroup]:
    """Make the default group of this process alone, and take it away again."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def trained(
    name: str | None, device: str, group: dist.ProcessGroup, steps: int, watch: Callable[[int], None] = lambda _: None
) -> Tensor:
    """Return all weights, on the CPU, after so many steps under an algorithm, or of plain DDP without one.

    `watch` is told each step before it begins, and their end.
    """
    module = Weighted().to(device)
    ids = [torch.cuda.current_device()] if device == "cuda" else None
    model = DistributedDataParallel(module, process_group=group, device_ids=ids, bucket_cap_mb=_BUCKET_MB)
    optimizer = optimizer_for(name or "plain", module.parameters())
    hosts = [[rank] for rank in range(group.size())]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, message="(?!called a synchronizing)")
        if name is None:
            _train(model, optimizer, group.rank(), device, range(steps), watch)
        else:
            with pliant.relax(model, optimizer, EVERY[name], group=group, hosts=hosts, timeout_s=30) as run:
                _train(run.model, optimizer, group.rank(), device, range(steps), watch)
    return torch.cat([w.detach().cpu().view(-1) for w in module.parameters()])


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    device: str,
    steps: range,
    watch: Callable[[int], None],
) -> None:
    generator = torch.Generator().manual_seed(rank)
    data = [[torch.randn(shape, generator=generator).to(device) for shape in Weighted.SHAPES] for _ in steps]
    for step in steps:
        watch(step)
        optimizer.zero_grad()
        model(*data[step]).backward()
        optimizer.step()
    watch(len(steps))
