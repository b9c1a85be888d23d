"""Training on real data, one arm and seed after the other, with time to a target."""

import math
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from pliant_bench.harness.arms import Arm, prepare, warmup_steps_of
from pliant_bench.harness.emit import emit
from pliant_bench.harness.rank_speed import RankSpeed, speed_of
from pliant_bench.harness.setup import Setup
from pliant_bench.harness.tasks import TrainingTask, evaluate
from pliant_bench.harness.wire import busiest, formula_bytes, interface_bytes

__all__ = ["compute_alone", "num_steps", "set_learning_rate", "train"]

_COMPUTE_STEPS = 12


def compute_alone(task: TrainingTask, setup: Setup) -> float:
    """Time steps without communication, for what the others expose, and for how slow a slow host is. Collective."""
    arm = _arm("compute", 0, task, setup, _COMPUTE_STEPS)
    dist.barrier()
    steps_s = [_step(arm, task, setup, RankSpeed(), 0, step)[0] for step in range(_COMPUTE_STEPS)]
    dist.barrier()
    alone_s = statistics.mean(steps_s[2:])
    emit("alone", {"step_s": alone_s})
    return alone_s


def train(name: str, seed: int, task: TrainingTask, setup: Setup, alone_s: float) -> None:
    """Train one arm from one seed, and say how it went. Collective."""
    total = num_steps(task, setup)
    arm = _arm(name, seed, task, setup, total)
    speed = speed_of(setup.slow_share, alone_s)
    own_total = speed.own_steps(total, free=arm.free)
    curve: list[dict[str, float]] = []
    steps_s: list[float] = []
    losses: list[float] = []
    metric = task.metric
    evaluation_sent = _bytes_of_evaluation(arm)
    evaluation_wire, num_evaluations = 0, 1  # the first to learn what one sends
    start_bytes = interface_bytes()
    capped = False
    dist.barrier()
    for until in _ends(total, setup.evaluate_every):
        while len(steps_s) < round(until * own_total / total):
            set_learning_rate(arm, len(steps_s), own_total)
            took_s, loss = _step(arm, task, setup, speed, seed, len(steps_s))
            steps_s.append(took_s)
            losses.append(loss)
        now_bytes = interface_bytes()
        train_s, wire_bytes = busiest([sum(steps_s), now_bytes - start_bytes - evaluation_wire])
        capped = bool(setup.max_seconds) and train_s >= setup.max_seconds and until < total
        last = capped or until == total
        value = evaluate(task, arm.evaluated(), task.num_held_out if last else min(task.probe, task.num_held_out))
        num_evaluations += 1
        evaluation_wire += interface_bytes() - now_bytes
        point = {"time_s": train_s, metric.name: value, "loss": statistics.mean(losses), "wire_bytes": wire_bytes}
        curve.append({"step": until, **point})
        losses.clear()
        emit("progress", {"arm": name, "seed": seed, "total": total, "score": _score(task, value), **curve[-1]})
        if capped:
            break
    _say_trained(arm, seed, curve, setup, task, evaluation_sent * num_evaluations, capped=capped)
    arm.close()


def _ends(total: int, every: int) -> list[int]:
    """Return the steps after which the model is judged."""
    return [*range(every, total, every), total]


def _score(task: TrainingTask, value: float) -> str:
    return f"{task.metric.name} {task.metric.text(value)}"


def _bytes_of_evaluation(arm: Arm) -> float:
    """Return what one evaluation makes this rank's run send, while nothing else is on its way. Collective."""
    before = arm.sent_bytes()
    arm.evaluated()
    after = arm.sent_bytes()
    return 0.0 if before is None or after is None else after - before


def num_steps(task: TrainingTask, setup: Setup) -> int:
    """Return the length of the schedule: the steps asked for, or what the epochs asked for come to, if fewer."""
    if not setup.max_epochs:
        return setup.train_steps
    per_epoch = task.steps_per_epoch(dist.get_world_size(), setup.batch)
    return min(setup.train_steps, max(1, math.ceil(setup.max_epochs * per_epoch)))


def _arm(name: str, seed: int, task: TrainingTask, setup: Setup, total: int) -> Arm:
    """Make an arm; the same seed gives the same weights to all arms and ranks."""
    torch.manual_seed(seed)
    return prepare(name, task.model(), task.lr, total, setup.bucket_mb, adam=task.adam)


def _step(arm: Arm, task: TrainingTask, setup: Setup, speed: RankSpeed, seed: int, step: int) -> tuple[float, float]:
    """Take one step; return its time and its loss."""
    start_s = time.perf_counter()
    x, y = task.batch(step, dist.get_rank(), dist.get_world_size(), setup.batch, seed)
    arm.optimizer.zero_grad()
    loss = cross_entropy(arm.model(x).flatten(0, -2), y.flatten())
    speed.pause()
    loss.backward()
    arm.optimizer.step()
    return time.perf_counter() - start_s, float(loss.detach())


def set_learning_rate(arm: Arm, step: int, total: int) -> None:
    """Set a tenth of warm-up, then linear decay to zero."""
    warm = max(total // 10, 1)
    factor = min((step + 1) / warm, max(total - step, 1) / max(total - warm, 1))
    for group in arm.optimizer.param_groups:
        group["lr"] = group.setdefault("first_lr", group["lr"]) * factor


def _say_trained(
    arm: Arm,
    seed: int,
    curve: list[dict[str, float]],
    setup: Setup,
    task: TrainingTask,
    evaluation_sent: float,
    *,
    capped: bool,
) -> None:
    sent, exposed_s = arm.sent_bytes(), arm.exposed_s()
    num, metric = curve[-1]["step"], task.metric
    reached = (p["time_s"] for p in curve if metric.is_reached(p[metric.name], setup.target))
    warm = min(1.0, warmup_steps_of(num_steps(task, setup)) / num)
    own = [formula_bytes(arm, warm) if sent is None else (sent - evaluation_sent) / num]
    emit(
        "train",
        {
            "arm": arm.name,
            "seed": seed,
            "curve": curve,
            "step_s": curve[-1]["time_s"] / num,
            "sent_bytes": busiest(own)[0],
            "counted": sent is not None,
            "wire_bytes": curve[-1]["wire_bytes"] / num if setup.emulated else None,
            "exposed_s": None if exposed_s is None else exposed_s / num,
            f"final_{metric.name}": curve[-1][metric.name],
            "capped": capped,
            "time_to_target_s": next(reached, None),
            "plan": None if arm.run is None else str(arm.run.plan),
        },
    )
