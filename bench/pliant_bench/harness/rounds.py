"""Step times: all arms of a model live side by side and take turns, round after round."""

import math
import statistics
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from pliant_bench.harness.arms import Arm, prepare
from pliant_bench.harness.emit import emit
from pliant_bench.harness.setup import Setup
from pliant_bench.harness.wire import busiest, formula_bytes, interface_bytes
from pliant_bench.models import TASKS, TimingTask

__all__ = ["measure"]

_WARM_UP_STEPS = 3
"""DDP settles its buckets, everything allocates what it will need, and warm-ups of algorithms end."""


@dataclass(kw_only=True)
class _Measured:
    """One value a round."""

    step_s: list[float] = field(default_factory=list[float])
    wire_bytes: list[float] = field(default_factory=list[float])
    sent_bytes: list[float] = field(default_factory=list[float])
    exposed_s: list[float] = field(default_factory=list[float])


def measure(model_name: str, setup: Setup) -> None:
    """Measure all arms on one model, and say what came out. Collective."""
    task = TASKS[model_name]
    batch = task.batch(torch.Generator().manual_seed(dist.get_rank()))
    arms: list[Arm] = []
    for name in setup.arms:
        torch.manual_seed(0)
        # Algorithms warm up for a fifth of the training that they are told of.
        arms.append(prepare(name, task.model(), 1e-3, 5 * _WARM_UP_STEPS, setup.bucket_mb))
        for _ in range(_WARM_UP_STEPS):
            _step(arms[-1], task, batch)
        emit("note", {"text": f"{model_name}: {name} is ready"})
    measured = {arm.name: _Measured() for arm in arms}
    for turn in range(setup.rounds):
        for arm in arms if turn % 2 == 0 else reversed(arms):  # A B B A: nobody profits from its place
            num_steps = math.ceil(setup.steps_per_round / arm.period) * arm.period
            _turn(arm, task, batch, num_steps, measured[arm.name])
            took_s = measured[arm.name].step_s[-1]
            emit("note", {"text": f"{model_name}: round {turn + 1}/{setup.rounds}, {arm.name} {took_s:.3f} s a step"})
    for arm in arms:
        _say_measured(model_name, arm, measured[arm.name], emulated=setup.emulated)
        arm.close()


def _step(arm: Arm, task: TimingTask, batch: tuple[Tensor, Tensor]) -> None:
    arm.optimizer.zero_grad()
    task.loss(arm.model, batch).backward()
    arm.optimizer.step()


def _turn(arm: Arm, task: TimingTask, batch: tuple[Tensor, Tensor], num_steps: int, into: _Measured) -> None:
    """Take some steps, from the moment when all ranks are ready to the moment when all are done.

    One step before them is not counted: in training no connection idles for as long as the other arms' turns take,
    and TCP starts anew, slowly, after a pause. What it has left on its way is there at the start, as it is at the end.
    """
    _step(arm, task, batch)
    sent_before, exposed_before = arm.sent_bytes(), arm.exposed_s()
    dist.barrier()
    wire_before, start_s = interface_bytes(), time.perf_counter()
    for _ in range(num_steps):
        _step(arm, task, batch)
    dist.barrier()
    into.step_s.append((time.perf_counter() - start_s) / num_steps)
    into.wire_bytes.append((interface_bytes() - wire_before) / num_steps)
    sent, exposed_s = arm.sent_bytes(), arm.exposed_s()
    if sent is not None and sent_before is not None and exposed_s is not None and exposed_before is not None:
        into.sent_bytes.append((sent - sent_before) / num_steps)
        into.exposed_s.append((exposed_s - exposed_before) / num_steps)
    arm.settle()


def _say_measured(model_name: str, arm: Arm, measured: _Measured, *, emulated: bool) -> None:
    counted = bool(measured.sent_bytes)
    sent_bytes = statistics.median(measured.sent_bytes) if counted else formula_bytes(arm)
    sent_bytes, wire_bytes = busiest([sent_bytes, statistics.median(measured.wire_bytes)])
    emit(
        "time",
        {
            "model": model_name,
            "numel": sum(p.numel() for p in arm.model.parameters()),
            "arm": arm.name,
            "step_s": measured.step_s,
            "sent_bytes": sent_bytes,
            "counted": counted,
            "wire_bytes": wire_bytes if emulated else None,
            "exposed_s": statistics.median(measured.exposed_s) if counted else None,
        },
    )
