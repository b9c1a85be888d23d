"""Small models, batches, and one training loop for thread ranks."""

import threading

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant

__all__ = ["Inner", "Net", "applied_and_given", "batch", "ended_equal", "new_ddp", "train", "weights"]

_one_at_a_time = threading.Lock()


class Net(nn.Module):
    """Convolution, BatchNorm and tied linear layers: everything that DDP has to be careful about, small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(64, 48)
        self.back = nn.Linear(48, 64)
        self.head = nn.Linear(64, 5)
        self.back.weight = nn.Parameter(self.hidden.weight.detach().t().contiguous())

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.head(torch.relu(self.back(torch.relu(self.hidden(h)))))


class Inner(nn.Module):
    """A model whose gradient is what it is called with, so that SGD at rate 1 changes the weights by just that."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, g):
        return (self.weight * g).sum()


def batch(rank: int, step: int, num: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(num, 1, 4, 4, generator=g), torch.randint(0, 5, (num,), generator=g)


def new_ddp(place, seed: int = 0, model=Net, bucket_cap_mb=0.004, **options) -> DistributedDataParallel:
    with _one_at_a_time:  # threads share torch's generator
        torch.manual_seed(seed)
        module = model()
    return DistributedDataParallel(module, process_group=place.process_group, bucket_cap_mb=bucket_cap_mb, **options)


def train(ddp, optimizer, rank: int, steps, before_step=lambda: None) -> list[float]:
    losses = []
    for step in steps:
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def weights(ddp) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in ddp.parameters()])


def ended_equal(size: int, body, timeout_s: float = 60) -> torch.Tensor:
    """Return the weights with which a body ends on each rank of a world: finite, and the same to the bit on all."""
    first, *others = pliant.run_world(size, body, timeout_s=timeout_s)
    assert all(torch.equal(first, other) for other in others)
    assert first.isfinite().all()
    return first


def applied_and_given(place, ddp, run, num_steps):
    """Train at a rate of 0 and switch to exact averages before the last step; return two sums over all steps.

    Of what was applied, and of the mean gradients: equal where nothing that is owed is lost.
    """
    given, applied = torch.zeros_like(weights(ddp)), torch.zeros_like(weights(ddp))
    for step in range(num_steps):
        if step == num_steps - 1:
            run.switch("allreduce")
        x, y = batch(place.rank, step)
        local = new_ddp(place, bucket_cap_mb=25)
        with local.no_sync():
            nn.functional.cross_entropy(local(x), y).backward()
        given += torch.cat([each.grad.flatten() for each in local.parameters()])
        run.optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        applied += torch.cat([each.grad.flatten() for each in ddp.parameters()])
        run.optimizer.step()
    place.comm.all_reduce(given).wait()
    return applied, given / place.size
