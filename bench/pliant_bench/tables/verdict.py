"""Verdict of a training in one sentence: who was soonest at the target, against 16-bit DDP. Pure."""

from collections.abc import Sequence
from typing import Any

from pliant_bench.harness.metric import METRICS, Metric
from pliant_bench.harness.names import AUTO, bare_name
from pliant_bench.tables.results import TrainRow, train_rows
from pliant_bench.tables.winners import EXACT_PEERS, is_ours

__all__ = ["best_arm", "next_steps", "verdict", "verdict_of"]

_NOISE = 1.05
"""Ratio of times below which nobody is called sooner."""
_CALLED = {"ddp": "32-bit DDP", "ddp-bf16": "16-bit DDP"}


def best_arm(rows: Sequence[TrainRow], metric: Metric) -> TrainRow | None:
    """Return the arm of Pliant's that is first at the target, of those that keep the accuracy if any does."""
    reached = [row for row in rows if is_ours(row.arm) and row.time_to_target_s is not None and not row.capped]
    kept = [row for row in reached if row.gap is None or row.gap >= -metric.tolerance]
    return min(kept or reached, key=_time_s, default=None)


def verdict(rows: Sequence[TrainRow], target: float, metric: Metric) -> str:
    """Return the sentence; empty without an arm of Pliant's and one of DDP to hold it against."""
    peers = [row for row in rows if row.arm in EXACT_PEERS]
    if not peers or not any(is_ours(row.arm) for row in rows):
        return ""
    goal, best = metric.goal(target), best_arm(rows, metric)
    reached = [row for row in peers if row.time_to_target_s is not None]
    if best is None:
        return f"None of Pliant's algorithms reached {metric.name} {goal}."
    if not reached:
        return f"{best.arm} reached {metric.name} {goal} after {_time_s(best):.0f} s; DDP did not reach it."
    peer = min(reached, key=_time_s)
    sooner = _time_s(peer) / _time_s(best)
    if sooner < _NOISE:
        return f"Nothing reached {metric.name} {goal} sooner than {_CALLED[peer.arm]} here."
    said = f"{best.arm} reached {metric.name} {goal} {sooner:.1f} times sooner than {_CALLED[peer.arm]}"
    return f"{said}; {_kept(best.gap, metric)}" if best.gap is not None else f"{said}."


def verdict_of(result: dict[str, Any]) -> str:
    """Return the sentence for what `pliant bench` has measured; empty if it has not trained."""
    setup = result["setup"]
    if setup["mode"] != "train":
        return ""
    metric = METRICS[setup["task"]]
    return verdict(train_rows(result["records"], metric), setup["target"], metric)


def next_steps(rows: Sequence[TrainRow], metric: Metric) -> list[tuple[str, str]]:
    """Return what a reader does next: words, and the line to paste."""
    best = best_arm(rows, metric)
    arm = AUTO if best is None else best.arm
    settings = arm.removeprefix(AUTO) if bare_name(arm) == AUTO else ""
    what = f"pliant.Auto{settings}" if settings else f'"{arm}"'
    return [
        ("in your own script, after DDP(...) and the optimizer", f"run = pliant.relax(model, optimizer, {what})"),
        ("the rates of your own network", "torchrun ... -m pliant probe --out topology.json"),
        ("what pays on it", "pliant plan --topology topology.json --workload gpt2"),
    ]


def _kept(gap: float, metric: Metric) -> str:
    noun = f"points of {metric.name}" if metric.higher else f"% of {metric.name}"
    if abs(gap) <= metric.tolerance:
        return f"it ended within {max(abs(gap), 0.1):.1f} {noun}."
    return f"it ended {abs(gap):.1f} {noun} {'better' if gap > 0 else 'worse'}."


def _time_s(row: TrainRow) -> float:
    if row.time_to_target_s is None:
        raise ValueError(f"{row.arm} did not reach the target, so that it has no time.")
    return row.time_to_target_s
