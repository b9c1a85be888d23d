"""Figures of a benchmark from its records: ratios of paired rounds, means over seeds. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pliant_bench.harness.metric import METRICS, Metric

__all__ = ["TimeRow", "TrainRow", "spread", "time_rows", "train_rows"]

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TimeRow:
    """One arm on one model."""

    model: str
    arm: str
    step_s: float
    speedup: float | None
    """Step time of DDP over this arm's: the median of the rounds' ratios."""
    speedup_spread: tuple[float, float] | None
    """Quartiles of the rounds' ratios."""
    over_compute: float | None
    """Step time over that of computing alone."""
    over_compute_spread: tuple[float, float] | None
    sent_bytes: float
    """What the busiest rank sends in a step."""
    counted: bool
    wire_bytes: float | None
    exposed_s: float | None
    exposed_estimated: bool
    efficiency: float | None
    """Time that the busiest rank's bytes need at the link's rate, over step time."""


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    """One arm over all seeds."""

    arm: str
    time_to_target_s: float | None
    """Mean over seeds; None if a seed did not get there."""
    step_s: float
    sent_bytes: float
    counted: bool
    wire_bytes: float | None
    final: float
    """Accuracy, or what takes its place, at the end; mean over seeds."""
    final_range: tuple[float, float]
    gap: float | None
    """Mean over seeds of how much better it is than 16-bit DDP with the same seed: points, or percent of perplexity."""
    exposed_s: float | None
    exposed_estimated: bool
    capped: bool
    """Whether a run was ended before its schedule was, so that its final accuracy is not that of the others."""


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles of some values."""
    if len(values) < 2:
        return values[0], values[0]
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return quartiles[0], quartiles[2]


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def time_rows(records: Sequence[Record], rate_bytes_per_s: float) -> list[TimeRow]:
    """Return a row per model and arm."""
    timed = [r for r in records if r["kind"] == "time"]
    times = {(r["model"], r["arm"]): r["step_s"] for r in timed}

    def beside(r: Record, arm: str) -> Sequence[float] | None:
        return times.get((r["model"], arm))

    return [_time_row(r, beside(r, "ddp"), beside(r, "compute"), rate_bytes_per_s) for r in timed]


def _time_row(
    r: Record, ddp: Sequence[float] | None, compute: Sequence[float] | None, rate_bytes_per_s: float
) -> TimeRow:
    own = r["step_s"]
    faster = _ratios(ddp, own) if ddp else None
    over = _ratios(own, compute) if compute else None
    more_s = [a - b for a, b in zip(own, compute, strict=True)] if compute else None
    estimated_s = max(0.0, statistics.median(more_s)) if more_s else None
    return TimeRow(
        model=r["model"],
        arm=r["arm"],
        step_s=statistics.median(own),
        speedup=statistics.median(faster) if faster else None,
        speedup_spread=spread(faster) if faster else None,
        over_compute=statistics.median(over) if over else None,
        over_compute_spread=spread(over) if over else None,
        sent_bytes=r["sent_bytes"],
        counted=r["counted"],
        wire_bytes=r["wire_bytes"],
        exposed_s=estimated_s if r["exposed_s"] is None else r["exposed_s"],
        exposed_estimated=r["exposed_s"] is None,
        efficiency=r["sent_bytes"] / rate_bytes_per_s / statistics.median(own) if rate_bytes_per_s else None,
    )


def train_rows(records: Sequence[Record], metric: Metric = METRICS["images"]) -> list[TrainRow]:
    """Return a row per arm, in the order in which they ran."""
    by_arm: dict[str, list[Record]] = {}
    for r in records:
        if r["kind"] == "train":
            by_arm.setdefault(r["arm"], []).append(r)
    base = {r["seed"]: r[f"final_{metric.name}"] for r in by_arm.get("ddp-bf16", []) if not r["capped"]}
    alone = next((r["step_s"] for r in records if r["kind"] == "alone"), None)
    return [_train_row(arm, runs, base, alone, metric) for arm, runs in by_arm.items()]


def _train_row(
    arm: str, runs: Sequence[Record], base: dict[int, float], alone_s: float | None, metric: Metric
) -> TrainRow:
    final = f"final_{metric.name}"
    reached = [r["time_to_target_s"] for r in runs]
    finals = [r[final] for r in runs]
    capped = any(r["capped"] for r in runs)
    gaps = [] if capped else [metric.gap(r[final], base[r["seed"]]) for r in runs if r["seed"] in base]
    step_s = statistics.median(r["step_s"] for r in runs)
    exposed = [r["exposed_s"] for r in runs if r["exposed_s"] is not None]
    estimated_s = None if alone_s is None else max(0.0, step_s - alone_s)
    wire = [r["wire_bytes"] for r in runs if r["wire_bytes"] is not None]
    return TrainRow(
        arm=arm,
        time_to_target_s=None if None in reached else statistics.mean(reached),
        step_s=step_s,
        sent_bytes=statistics.mean(r["sent_bytes"] for r in runs),
        counted=runs[0]["counted"],
        wire_bytes=statistics.mean(wire) if wire else None,
        final=statistics.mean(finals),
        final_range=(min(finals), max(finals)),
        gap=statistics.mean(gaps) if gaps else None,
        exposed_s=statistics.mean(exposed) if exposed else estimated_s,
        exposed_estimated=not exposed,
        capped=capped,
    )
