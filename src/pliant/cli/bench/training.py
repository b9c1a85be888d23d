"""Training on real images, one arm and seed after the other, with time to accuracy."""

import math
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pliant.cli.bench.arms import Arm, prepare
from pliant.cli.bench.images import Images
from pliant.cli.bench.lines import say
from pliant.cli.bench.models import Cnn
from pliant.cli.bench.setup import Setup
from pliant.cli.bench.wire import busiest, formula_bytes, interface_bytes

__all__ = ["compute_alone", "num_steps", "train"]

_LR = 0.015
"""With error feedback a gradient arrives late, so a rate that only just suits exact averaging is too high."""
_PROBE = 2500
"""Test images for the points of the accuracy curve; the final accuracy is over all."""
_COMPUTE_STEPS = 12


def compute_alone(images: Images, setup: Setup) -> None:
    """Time steps without communication, for what the others expose. Collective."""
    arm = _arm("compute", 0, images, setup, _COMPUTE_STEPS)
    dist.barrier()
    steps_s = [_step(arm, images, setup, 0, step)[0] for step in range(_COMPUTE_STEPS)]
    dist.barrier()
    say("alone", {"step_s": statistics.mean(steps_s[2:])})


def train(name: str, seed: int, images: Images, setup: Setup) -> None:
    """Train one arm from one seed, and say how it went. Collective."""
    total = num_steps(images, setup)
    arm = _arm(name, seed, images, setup, total)
    curve: list[dict[str, float]] = []
    steps_s: list[float] = []
    losses: list[float] = []
    evaluation_bytes = 0
    start_bytes = interface_bytes()
    capped = False
    dist.barrier()
    for step in range(total):
        _set_learning_rate(arm, step, total)
        took_s, loss = _step(arm, images, setup, seed, step)
        steps_s.append(took_s)
        losses.append(loss)
        if (step + 1) % setup.evaluate_every and step + 1 < total:
            continue
        now_bytes = interface_bytes()
        train_s, wire_bytes = busiest([sum(steps_s), now_bytes - start_bytes - evaluation_bytes])
        capped = bool(setup.max_seconds) and train_s >= setup.max_seconds and step + 1 < total
        num = images.test_y.numel() if capped or step + 1 == total else min(_PROBE, images.test_y.numel())
        accuracy = _accuracy(arm.model, images, num)
        evaluation_bytes += interface_bytes() - now_bytes
        point = {"time_s": train_s, "accuracy": accuracy, "loss": statistics.mean(losses), "wire_bytes": wire_bytes}
        curve.append({"step": step + 1, **point})
        losses.clear()
        say("progress", {"arm": name, "seed": seed, "total": total, **curve[-1]})
        if capped:
            break
    _say_trained(arm, seed, curve, steps_s, setup, capped=capped)
    arm.close()


def num_steps(images: Images, setup: Setup) -> int:
    """Return the length of the schedule: the steps asked for, or what the epochs asked for come to, if fewer."""
    if not setup.max_epochs:
        return setup.train_steps
    per_epoch = images.steps_per_epoch(dist.get_world_size(), setup.batch)
    return min(setup.train_steps, max(1, math.ceil(setup.max_epochs * per_epoch)))


def _arm(name: str, seed: int, images: Images, setup: Setup, total: int) -> Arm:
    """Make an arm; the same seed gives the same weights to all arms and ranks."""
    torch.manual_seed(seed)
    channels, side = images.train_x.shape[1], images.train_x.shape[2]
    classes = int(images.train_y.max()) + 1
    return prepare(name, Cnn(channels=channels, classes=classes, size=side), _LR, total, setup.bucket_mb)


def _step(arm: Arm, images: Images, setup: Setup, seed: int, step: int) -> tuple[float, float]:
    """Take one step; return its time and its loss."""
    start_s = time.perf_counter()
    x, y = images.batch(step, dist.get_rank(), dist.get_world_size(), setup.batch, seed)
    arm.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(arm.model(x), y)
    loss.backward()
    arm.optimizer.step()
    return time.perf_counter() - start_s, float(loss.detach())


def _set_learning_rate(arm: Arm, step: int, total: int) -> None:
    """Set a tenth of warm-up, then linear decay to zero."""
    warm = max(total // 10, 1)
    factor = min((step + 1) / warm, max(total - step, 1) / max(total - warm, 1))
    for group in arm.optimizer.param_groups:
        group["lr"] = group.setdefault("first_lr", group["lr"]) * factor


def _accuracy(model: nn.Module, images: Images, num: int) -> float:
    """Return the share of the first `num` test images that are right; each rank judges its part. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    net.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for first in range(rank * 250, num, size * 250):
            x, y = images.test_x[first : min(first + 250, num)], images.test_y[first : min(first + 250, num)]
            right += torch.tensor([float((net(x).argmax(1) == y).sum()), y.numel()])
    net.train()
    dist.all_reduce(right)
    return float(right[0] / right[1])


def _say_trained(
    arm: Arm, seed: int, curve: list[dict[str, float]], steps_s: list[float], setup: Setup, *, capped: bool
) -> None:
    sent, exposed_s = arm.sent_bytes(), arm.exposed_s()
    num = len(steps_s)
    sent_bytes = busiest([formula_bytes(arm) if sent is None else sent / num])[0]
    say(
        "train",
        {
            "arm": arm.name,
            "seed": seed,
            "curve": curve,
            "step_s": statistics.mean(steps_s),
            "sent_bytes": sent_bytes,
            "counted": sent is not None,
            "wire_bytes": curve[-1]["wire_bytes"] / num if setup.emulated else None,
            "exposed_s": None if exposed_s is None else exposed_s / num,
            "final_accuracy": curve[-1]["accuracy"],
            "capped": capped,
            "time_to_target_s": next((p["time_s"] for p in curve if p["accuracy"] >= setup.target_accuracy), None),
        },
    )
