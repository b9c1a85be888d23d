"""Step times: all arms of a model live side by side and take turns, round after round."""

import math
import statistics
import time
from dataclasses import dataclass, field

import torch.distributed as dist

from pliant_bench.harness.arms import Arm
from pliant_bench.harness.emit import emit
from pliant_bench.harness.learners import Learner, timed_learner
from pliant_bench.harness.setup import Setup
from pliant_bench.harness.wire import busiest, formula_bytes, interface_bytes

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
    learner = timed_learner(model_name, setup)
    arms: list[Arm] = []
    for name in setup.arms:
        # Algorithms warm up for a fifth of the training that they are told of.
        arms.append(learner.arm(name, 0, 5 * _WARM_UP_STEPS))
        for _ in range(_WARM_UP_STEPS):
            _step(arms[-1], learner)
        emit("note", {"text": f"{model_name}: {name} is ready"})
    measured = {arm.name: _Measured() for arm in arms}
    for turn in range(setup.rounds):
        for arm in arms if turn % 2 == 0 else reversed(arms):  # A B B A: nobody profits from its place
            num_steps = math.ceil(setup.steps_per_round / arm.period) * arm.period
            _turn(arm, learner, num_steps, measured[arm.name])
            took_s = measured[arm.name].step_s[-1]
            emit("note", {"text": f"{model_name}: round {turn + 1}/{setup.rounds}, {arm.name} {took_s:.3f} s a step"})
    for arm in arms:
        _say_measured(model_name, arm, measured[arm.name], emulated=setup.emulated)
        arm.close()


def _step(arm: Arm, learner: Learner) -> None:
    arm.optimizer.zero_grad()
    learner.loss(arm, 0, arm.steps_made).backward()
    arm.optimizer.step()
    arm.steps_made += 1


def _turn(arm: Arm, learner: Learner, num_steps: int, into: _Measured) -> None:
    """Take some steps, from the moment when all ranks are ready to the moment when all are done.

    One step before them is not counted: in training no connection idles for as long as the other arms' turns take,
    and TCP starts anew, slowly, after a pause. What it has left on its way is there at the start, as it is at the end.
    """
    _step(arm, learner)
    sent_before, exposed_before = arm.sent_bytes(), arm.exposed_s()
    arm.synchronize()
    dist.barrier()
    wire_before, start_s = interface_bytes(), time.perf_counter()
    for _ in range(num_steps):
        _step(arm, learner)
    arm.synchronize()
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
