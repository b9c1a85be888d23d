"""One training: workers as threads of one process, bytes read from what their runs have counted."""

import copy
import time
from dataclasses import asdict, dataclass

import torch
from accuracy_arms import Arm
from accuracy_tasks import Task
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.algorithms.by_name import ONE_BUCKET_BYTES
from pliant.spec import SyncPlan

WORKERS = 4
_NEAR = 0.03
"""How far from the wanted bytes a fitted size may be."""
_TRIES = 12
_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came out of a training."""

    value: float | None
    """The metric on held-out data; None where the training came to gradients that were not finite."""
    loss: float
    """Mean over the last tenth of the steps, and over workers."""
    sent_bytes: float
    """Per step, all workers together, as counted by `run.stats()`."""
    wall_s: float


def trained(
    task: Task, plan: SyncPlan, kind: str, seed: int, steps: int, *, judged: bool = True, momentum: float = 0.9
) -> Outcome:
    """Train on `WORKERS` threads from the seed's weights and batches, which are the same for all plans."""
    torch.manual_seed(seed)
    first = task.model()
    start_s = time.perf_counter()

    def body(place: pliant.comm.RankContext) -> tuple[torch.nn.Module, list[float], float]:
        module = copy.deepcopy(first)
        ddp = DistributedDataParallel(module, process_group=place.process_group)
        ddp.broadcast_buffers = False  # a worker's norms see its own batches; rank 0's are judged
        optimizer = task.optimizer(kind, module, momentum=momentum)
        losses: list[float] = []
        with pliant.relax(ddp, optimizer, plan, timeout_s=_TIMEOUT_S, agreement_every=0) as run:
            try:
                for step in range(steps):
                    _set_rate(optimizer, step, max(steps, 10))
                    x, y = task.learning.batch(step, place.rank, place.size, task.batch, seed)
                    optimizer.zero_grad()
                    loss = cross_entropy(run.model(x).flatten(0, -2), y.flatten())
                    loss.backward()
                    optimizer.step()
                    losses.append(float(loss.detach()))
            except pliant.NonFiniteGradientError:
                losses.append(float("nan"))
            return module, losses, run.stats()["sent_bytes"]

    results = pliant.run_world(WORKERS, body, timeout_s=_TIMEOUT_S)
    models, losses = [model for model, _, _ in results], [row for _, row, _ in results]
    lost = any(loss != loss for row in losses for loss in row)
    made = max(len(losses[0]) - lost, 1)
    if not lost:
        _require_equal(models)
    tail = [loss for row in losses for loss in row[-max(made // 10, 1) :]]
    return Outcome(
        value=task.judge(models[0]) if judged and not lost else None,
        loss=sum(tail) / len(tail),
        sent_bytes=sum(sent for _, _, sent in results) / made,
        wall_s=time.perf_counter() - start_s,
    )


def _require_equal(models: list[torch.nn.Module]) -> None:
    """Refuse a result of workers that have come apart: it would be of one of four models."""
    for other in models[1:]:
        if not all(torch.equal(a, b) for a, b in zip(models[0].parameters(), other.parameters(), strict=True)):
            raise RuntimeError("the workers' weights differ after a training whose plan keeps them equal.")


def _set_rate(optimizer: torch.optim.Optimizer, step: int, total: int) -> None:
    """Set a tenth of warm-up, then linear decay to zero, as `pliant bench --train` does."""
    warm = max(total // 10, 1)
    factor = min((step + 1) / warm, max(total - step, 1) / max(total - warm, 1))
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("first_lr", group["lr"]) * factor


def dense_bytes(task: Task, kind: str) -> float:
    """Return the bytes per step of all workers of a dense float32 all-reduce, as counted."""
    plan = SyncPlan(rules=(pliant.spec.Rule(),), bucket_bytes=ONE_BUCKET_BYTES)
    return trained(task, plan, kind, 0, 2, judged=False).sent_bytes


def fitted_size(task: Task, arm: Arm, kind: str, ratio: int, dense: float) -> float:
    """Return the arm's size at which it sends dense / ratio bytes a step, by measuring; the size itself if it is that.

    Raises:
        ValueError: It cannot send so few: every layer, or every one-dimensional tensor, has its least.

    """
    if arm.fixed:
        return 0.0
    size, wanted = 1 / ratio, dense / ratio
    if not arm.fitted:
        return size
    measured: list[tuple[float, float]] = []
    for _ in range(_TRIES):
        plan = arm.plan(size, task.model())
        outcome = trained(task, plan, kind, 0, arm.probe_steps, judged=False, momentum=arm.momentum)
        measured.append((size, outcome.sent_bytes))
        if abs(outcome.sent_bytes / wanted - 1) <= _NEAR:
            return size
        size = _next_size(measured, wanted)
        if size <= 1e-8 or any(size == before for before, _ in measured):
            break
    best, sent = min(measured, key=lambda pair: abs(pair[1] / wanted - 1))
    if abs(sent / wanted - 1) > 0.15:
        raise ValueError(
            f"{arm.name} cannot send a {ratio}th of dense float32 on {task.name}: at a size of {best:.3g} it sends a "
            f"{dense / sent:.1f}th, and no size that was tried came nearer."
        )
    return best


def _next_size(measured: list[tuple[float, float]], wanted: float) -> float:
    """Return where the line through the two nearest measurements, or through zero, meets the wanted bytes."""
    (a, sent_a), *rest = sorted(measured, key=lambda pair: abs(pair[1] - wanted))[:2]
    if not rest or rest[0][1] == sent_a:
        return min(1.0, a * wanted / sent_a) if sent_a > wanted else min(1.0, 1.5 * a)
    b, sent_b = rest[0]
    size = a + (wanted - sent_a) * (b - a) / (sent_b - sent_a)
    return min(1.0, max(size, min(a, b) / 4))


def as_record(outcome: Outcome) -> dict[str, float | None]:
    """Return what is written down of an outcome."""
    return asdict(outcome)
