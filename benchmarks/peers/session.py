"""What every worker does alike: the same model, data and steps, timed over whole periods, and one record at the end.

A worker is ``python NAME_worker.py JOB.json``, once per rank, with torchrun's environment.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from jobs import Job
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from pliant_bench.data.images import load_images
from pliant_bench.harness.emit import emit
from pliant_bench.harness.wire import busiest, interface_bytes
from pliant_bench.models import TASKS, Cnn

_TIMEOUT = timedelta(seconds=120)
_EVALUATION_BATCH = 250


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One rank's training in the hands of a library."""

    model: nn.Module
    """The module to call; the one that was given, or what the library has wrapped it in."""
    optimizer: Optimizer | None
    """None where backward updates the weights and sets the learning rate."""
    close: Callable[[], None] = lambda: None
    free: bool = False
    """Whether the library chooses when ranks meet. A rank is then never held up, as others may be waiting for it: it
    times its own steps, and goes on training until all have done theirs."""


Start = Callable[[Job, nn.Module], Trainer]


def sgd(job: Job, module: nn.Module) -> SGD:
    """Return the optimizer that all arms have."""
    return SGD(module.parameters(), lr=job.lr, momentum=0.9)


def own_address() -> str:
    """Return this host's address in the cluster; all emulated hosts share the machine's name, which has none there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing, but chooses a way
        return probe.getsockname()[0]


def run(start: Start) -> None:
    """Train, time, evaluate, and say what came out."""
    job = Job.read(Path(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    torch.manual_seed(job.seed)  # the same weights on all ranks, and for all arms
    images = load_images(Path(job.data)) if job.model == "cnn" else None
    task = TASKS[job.model]
    module = Cnn() if images else task.model()
    made_up = task.batch(torch.Generator().manual_seed(dist.get_rank()))
    rank, size = dist.get_rank(), dist.get_world_size()
    trainer = start(job, module)
    module.train()

    def train(first: int, num_steps: int) -> None:
        for step in range(first, first + num_steps):
            batch = images.batch(step, rank, size, job.batch, job.seed) if images else made_up
            _step(trainer, job, step, lambda model, batch=batch: _loss(model, batch))

    train(0, job.warm_up_steps)
    if not trainer.free:
        dist.barrier()
    wire_before, start_s = interface_bytes(), time.perf_counter()
    train(job.warm_up_steps, job.steps)
    if not trainer.free:
        dist.barrier()
    step_s = (time.perf_counter() - start_s) / job.steps
    sent_bytes = (interface_bytes() - wire_before) / job.steps
    if trainer.free:
        _train_until_all_are_done(train, job.warm_up_steps + job.steps)
    step_s, wire_bytes = busiest([step_s, sent_bytes])
    accuracy = _accuracy(module, images.test_x, images.test_y) if images else None
    distance = _distance(module)
    emit("peer", {"step_s": step_s, "wire_bytes": wire_bytes, "accuracy": accuracy, "distance": distance})
    dist.barrier()
    trainer.close()
    dist.destroy_process_group()


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def _step(trainer: Trainer, job: Job, step: int, loss_of: Callable[[nn.Module], Tensor]) -> None:
    optimizer = trainer.optimizer
    if optimizer is None:
        loss_of(trainer.model).backward()
        return
    for group in optimizer.param_groups:
        group["lr"] = job.lr * job.lr_factor(step)
    optimizer.zero_grad()
    loss_of(trainer.model).backward()
    optimizer.step()


def _train_until_all_are_done(train: Callable[[int, int], None], step: int) -> None:
    """Say that this rank is done, and train on, at the last learning rate, until all are."""
    work = dist.barrier(async_op=True)
    while work is not None and not work.is_completed():
        train(step, 1)
        step += 1


def _accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of test images that are right; each rank judges its part with its own weights. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    module.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for first in range(rank * _EVALUATION_BATCH, y.numel(), size * _EVALUATION_BATCH):
            part = slice(first, first + _EVALUATION_BATCH)
            right += torch.tensor([float((module(x[part]).argmax(1) == y[part]).sum()), y[part].numel()])
    dist.all_reduce(right)
    return float(right[0] / right[1])


def _distance(module: nn.Module) -> float:
    """Return the largest distance of a rank's weights to their mean, over the norm of the mean. Collective."""
    own = torch.cat([p.detach().flatten() for p in module.parameters()])  # (numel,)
    mean = own / dist.get_world_size()
    dist.all_reduce(mean)
    return busiest([float((own - mean).norm() / mean.norm())])[0]
