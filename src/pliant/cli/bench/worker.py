"""One rank of a benchmark: ``python -m pliant.cli.bench.worker SETUP.json``, with torchrun's environment."""

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pliant.cli.bench.arms import Arm, prepare
from pliant.cli.bench.images import Images, load_images
from pliant.cli.bench.models import TASKS, Cnn, Task
from pliant.cli.bench.setup import Setup
from pliant.spec import load

__all__ = ["main"]

_LR = 0.04
_PROBE = 2500
"""Test images for the points of the accuracy curve; the final accuracy is over all."""


class _Report:
    """Lines of JSON from rank 0: progress for people, records for the table."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a") if path and dist.get_rank() == 0 else None  # noqa: SIM115

    def __call__(self, kind: str, **fields: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
            self._file.flush()


def _wire_bytes() -> int:
    """Bytes that have left this host by its first interface but loopback, headers and all."""
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() != "lo":
            return int(counters.split()[8])
    return 0


def _ring_bytes(model: nn.Module, bytes_per_element: float) -> float:
    size = dist.get_world_size()
    return 2 * (size - 1) / size * sum(p.numel() for p in model.parameters() if p.requires_grad) * bytes_per_element


def _computed_bytes(arm: Arm) -> float | None:
    """Bytes per step of the arms that nobody counts: the ring formula."""
    return {"compute": 0.0, "ddp": _ring_bytes(arm.model, 4), "ddp-adam": _ring_bytes(arm.model, 4)}.get(
        arm.name, _ring_bytes(arm.model, 2) if arm.name == "ddp-bf16" else None
    )


# - Step times


def _step(arm: Arm, task: Task, batch: tuple[Tensor, Tensor]) -> None:
    arm.optimizer.zero_grad()
    task.loss(arm.model, batch).backward()
    arm.optimizer.step()


def _measure(model_name: str, setup: Setup, report: _Report) -> None:
    task = TASKS[model_name]
    batch = task.batch(torch.Generator().manual_seed(dist.get_rank()))
    arms: list[Arm] = []
    total = (setup.rounds + 2) * setup.steps_per_round
    for name in setup.arms:
        torch.manual_seed(0)
        arms.append(prepare(name, task.model(), 1e-3, total, setup.bucket_mb))
        report("note", text=f"{model_name}: {name} is ready")
        for _ in range(3):  # DDP settles its buckets, and everything allocates what it will need
            _step(arms[-1], task, batch)
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    sent: dict[str, list[float]] = {arm.name: [] for arm in arms}
    wire: dict[str, list[float]] = {arm.name: [] for arm in arms}
    exposed: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for turn in range(setup.rounds):
        for arm in arms:
            sent_before, exposed_before = arm.sent_bytes(), arm.exposed_s()
            dist.barrier()
            wire_before, start_s = _wire_bytes(), time.perf_counter()
            for _ in range(setup.steps_per_round):
                _step(arm, task, batch)
            dist.barrier()
            took_s = (time.perf_counter() - start_s) / setup.steps_per_round
            times[arm.name].append(took_s)
            wire[arm.name].append((_wire_bytes() - wire_before) / setup.steps_per_round)
            counted, waited_s = arm.sent_bytes(), arm.exposed_s()
            if sent_before is not None and counted is not None and exposed_before is not None and waited_s is not None:
                sent[arm.name].append((counted - sent_before) / setup.steps_per_round)
                exposed[arm.name].append((waited_s - exposed_before) / setup.steps_per_round)
            report("note", text=f"{model_name}: round {turn + 1}/{setup.rounds}, {arm.name} {took_s:.3f} s a step")
    numel = sum(p.numel() for p in arms[0].model.parameters())
    for arm in arms:
        counted_bytes = statistics.median(sent[arm.name]) if sent[arm.name] else _computed_bytes(arm)
        report(
            "time",
            model=model_name,
            numel=numel,
            arm=arm.name,
            step_s=times[arm.name],
            sent_bytes=counted_bytes,
            counted=bool(sent[arm.name]),
            wire_bytes=statistics.median(wire[arm.name]),
            exposed_s=statistics.median(exposed[arm.name]) if exposed[arm.name] else None,
        )
        arm.close()


# - Training


def _accuracy(model: nn.Module, images: Images, num: int) -> float:
    """Share of the first `num` test images that are right; each rank judges its part."""
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


def _lr_factor(step: int, total: int) -> float:
    """Return the factor of a tenth of warm-up, then of linear decay to zero."""
    warm = max(total // 10, 1)
    return min((step + 1) / warm, max(total - step, 1) / (total - warm))


def _train(name: str, seed: int, images: Images, setup: Setup, report: _Report) -> None:
    torch.manual_seed(seed)
    rank, size, total = dist.get_rank(), dist.get_world_size(), setup.train_steps
    channels, side = images.train_x.shape[1], images.train_x.shape[2]
    arm = prepare(name, Cnn(channels=channels, size=side), _LR, total, setup.bucket_mb)
    rates = [group["lr"] for group in arm.optimizer.param_groups]
    curve: list[dict[str, float]] = []
    steps_s: list[float] = []
    train_s, loss, wire_before = 0.0, torch.tensor(torch.nan), _wire_bytes()
    dist.barrier()
    for step in range(total):
        start_s = time.perf_counter()
        for group, rate in zip(arm.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * _lr_factor(step, total)
        x, y = images.batch(step, rank, size, setup.batch, seed)
        arm.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(arm.model(x), y)
        loss.backward()
        arm.optimizer.step()
        steps_s.append(time.perf_counter() - start_s)
        train_s += steps_s[-1]
        if (step + 1) % setup.evaluate_every == 0 or step + 1 == total:
            sent_wire = _wire_bytes() - wire_before
            num = images.test_y.numel() if step + 1 == total else min(_PROBE, images.test_y.numel())
            accuracy = _accuracy(arm.model, images, num)
            wire_before = _wire_bytes() - sent_wire  # evaluation is not training
            curve.append({"step": step + 1, "time_s": train_s, "accuracy": accuracy, "wire_bytes": sent_wire})
            text = f"{name} seed {seed}: step {step + 1}/{total}, {train_s:.0f} s, accuracy {accuracy:.3f}"
            report("note", text=text)
    sent, exposed = arm.sent_bytes(), arm.exposed_s()
    report(
        "train",
        arm=name,
        seed=seed,
        curve=curve,
        step_s=statistics.median(steps_s),
        sent_bytes=_computed_bytes(arm) if sent is None else sent / total,
        counted=sent is not None,
        wire_bytes=curve[-1]["wire_bytes"] / total,
        exposed_s=None if exposed is None else exposed / total,
        final_accuracy=curve[-1]["accuracy"],
        final_loss=float(loss.detach()),
        time_to_target_s=next((p["time_s"] for p in curve if p["accuracy"] >= setup.target_accuracy), None),
    )
    arm.close()


def main(path: str) -> None:
    """Run all cells of a setup."""
    setup = load(Setup, path)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    report = _Report(setup.out)
    if setup.mode == "time":
        for model in setup.models:
            _measure(model, setup, report)
    else:
        images = load_images(setup.data)
        for seed in setup.seeds:
            for name in setup.arms:
                _train(name, seed, images, setup, report)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
