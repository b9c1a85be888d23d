"""Training on real data, one arm and seed after the other, with time to a target."""

import math
import statistics
import time

import torch.distributed as dist

from pliant_bench.harness.arms import Arm
from pliant_bench.harness.curve import Curve
from pliant_bench.harness.emit import emit
from pliant_bench.harness.learners import TrainedLearner
from pliant_bench.harness.names import warmup_steps_of
from pliant_bench.harness.rank_speed import RankSpeed, speed_of
from pliant_bench.harness.setup import OPEN, Setup
from pliant_bench.harness.stages import NetworkRequests
from pliant_bench.harness.wire import busiest, formula_bytes

__all__ = ["compute_alone", "num_steps", "set_learning_rate", "train"]

_COMPUTE_STEPS = 12


def compute_alone(learner: TrainedLearner) -> float:
    """Time steps without communication, for what the others expose, and for how slow a slow host is. Collective."""
    arm = learner.arm("compute", 0, _COMPUTE_STEPS)
    dist.barrier()
    steps_s = [_step(arm, learner, RankSpeed(), 0, step)[0] for step in range(_COMPUTE_STEPS)]
    dist.barrier()
    alone_s = statistics.mean(steps_s[2:])
    emit("alone", {"step_s": alone_s})
    return alone_s


def train(
    name: str, seed: int, learner: TrainedLearner, setup: Setup, alone_s: float, network: NetworkRequests | None
) -> None:
    """Train one arm from one seed, and say how it went. Collective.

    Args:
        name: Of the arm.
        seed: Of the training.
        learner: Which has the task.
        setup: The benchmark.
        alone_s: Time of a step without communication.
        network: Has no limits while points of a free pace are judged, which can last longer than the training; None:
            nobody can change it.

    """
    total = num_steps(learner, setup)
    arm = learner.arm(name, seed, total)
    speed = speed_of(setup.slow_share, alone_s)
    own_total = speed.own_steps(total, unbounded=arm.unbounded)
    steps_s: list[float] = []
    losses: list[float] = []
    mean_loss = math.nan  # until the first step of this rank
    curve = Curve(arm, seed, learner, total, setup.max_seconds)
    dist.barrier()
    for until in _ends(total, setup.evaluate_every):
        while len(steps_s) < round(until * own_total / total):
            if learner.decays:
                set_learning_rate(arm, len(steps_s), own_total)
            took_s, loss = _step(arm, learner, speed, seed, len(steps_s))
            steps_s.append(took_s)
            losses.append(loss)
        mean_loss = statistics.mean(losses) if losses else mean_loss  # a slow rank may have no step between two points
        losses.clear()
        if curve.reach(until, sum(steps_s), mean_loss):
            break
    opened = network if arm.free else None
    if opened is not None:
        opened.wait_for(OPEN)
    curve.end()
    _say_trained(arm, seed, curve, setup, learner)
    arm.close()
    if opened is not None:
        opened.wait_for(0)


def _ends(total: int, every: int) -> list[int]:
    """Return the steps after which the model is judged."""
    return [*range(every, total, every), total]


def num_steps(learner: TrainedLearner, setup: Setup) -> int:
    """Return the length of the schedule: the steps asked for, or what the epochs asked for come to, if fewer."""
    if not setup.max_epochs:
        return setup.train_steps
    return min(setup.train_steps, max(1, math.ceil(setup.max_epochs * learner.steps_per_epoch)))


def _step(arm: Arm, learner: TrainedLearner, speed: RankSpeed, seed: int, step: int) -> tuple[float, float]:
    """Take one step; return its time and its loss."""
    start_s = time.perf_counter()
    arm.optimizer.zero_grad()
    loss = learner.loss(arm, seed, step)
    speed.pause()
    loss.backward()
    arm.optimizer.step()
    arm.synchronize()
    return time.perf_counter() - start_s, float(loss.detach())


def set_learning_rate(arm: Arm, step: int, total: int) -> None:
    """Set a tenth of warm-up, then linear decay to zero."""
    warm = max(total // 10, 1)
    factor = min((step + 1) / warm, max(total - step, 1) / max(total - warm, 1))
    for group in arm.optimizer.param_groups:
        group["lr"] = group.setdefault("first_lr", group["lr"]) * factor


def _say_trained(arm: Arm, seed: int, curve: Curve, setup: Setup, learner: TrainedLearner) -> None:
    points, total = curve.points, num_steps(learner, setup)
    sent, exposed_s = arm.sent_bytes(), arm.exposed_s()
    num, metric = points[-1]["step"], learner.metric
    reached = (p["time_s"] for p in points if metric.is_reached(p[metric.name], setup.target))
    warm = min(1.0, warmup_steps_of(total) / num)
    own = [formula_bytes(arm, warm) if sent is None else (sent - curve.evaluation_sent) / num]
    emit(
        "train",
        {
            "arm": arm.name,
            "seed": seed,
            "curve": points,
            "step_s": points[-1]["time_s"] / num,
            "sent_bytes": busiest(own)[0],
            "counted": sent is not None,
            "wire_bytes": points[-1]["wire_bytes"] / num if setup.emulated else None,
            "exposed_s": None if exposed_s is None else exposed_s / num,
            f"final_{metric.name}": points[-1][metric.name],
            "capped": num < total,
            "time_to_target_s": next(reached, None),
            "plan": None if arm.run is None else str(arm.run.plan),
        },
    )
