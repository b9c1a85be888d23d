"""From records of a benchmark to the figures that are shown: ratios of paired rounds, means over seeds. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    sent_bytes: float | None
    counted: bool
    wire_bytes: float
    exposed_s: float | None
    efficiency: float | None
    """Time that its bytes need at the link's rate, over step time."""


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    """One arm over all seeds."""

    arm: str
    time_to_target_s: float | None
    """Mean over seeds; None if a seed did not get there."""
    step_s: float
    sent_bytes: float | None
    counted: bool
    wire_bytes: float
    final_accuracy: float
    final_accuracy_range: tuple[float, float]
    gap: float | None
    """Mean over seeds of final accuracy minus that of 16-bit DDP with the same seed, in points."""
    exposed_s: float | None
    exposed_estimated: bool


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
    times = {(r["model"], r["arm"]): r["step_s"] for r in records if r["kind"] == "time"}
    rows: list[TimeRow] = []
    for r in records:
        if r["kind"] != "time":
            continue
        own = r["step_s"]
        ddp, compute = times.get((r["model"], "ddp")), times.get((r["model"], "compute"))
        faster = _ratios(ddp, own) if ddp else None
        over = _ratios(own, compute) if compute else None
        sent = r["sent_bytes"] if r["sent_bytes"] is not None else r["wire_bytes"]
        rows.append(
            TimeRow(
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
                exposed_s=r["exposed_s"],
                efficiency=sent / rate_bytes_per_s / statistics.median(own) if rate_bytes_per_s else None,
            )
        )
    return rows


def train_rows(records: Sequence[Record]) -> list[TrainRow]:
    """Return a row per arm, in the order in which they ran."""
    by_arm: dict[str, list[Record]] = {}
    for r in records:
        if r["kind"] == "train":
            by_arm.setdefault(r["arm"], []).append(r)
    base = {r["seed"]: r["final_accuracy"] for r in by_arm.get("ddp-bf16", [])}
    # What a step takes without waiting: the runs that measure their waiting say it for those that do not.
    hidden = [r["step_s"] - r["exposed_s"] for runs in by_arm.values() for r in runs if r["exposed_s"] is not None]
    alone_s = statistics.median(hidden) if hidden else None
    rows: list[TrainRow] = []
    for arm, runs in by_arm.items():
        reached = [r["time_to_target_s"] for r in runs]
        finals = [r["final_accuracy"] for r in runs]
        gaps = [100 * (r["final_accuracy"] - base[r["seed"]]) for r in runs if r["seed"] in base]
        step_s = statistics.median(r["step_s"] for r in runs)
        exposed = [r["exposed_s"] for r in runs if r["exposed_s"] is not None]
        estimated = not exposed and alone_s is not None
        rows.append(
            TrainRow(
                arm=arm,
                time_to_target_s=None if None in reached else statistics.mean(reached),
                step_s=step_s,
                sent_bytes=runs[0]["sent_bytes"],
                counted=runs[0]["counted"],
                wire_bytes=statistics.mean(r["wire_bytes"] for r in runs),
                final_accuracy=statistics.mean(finals),
                final_accuracy_range=(min(finals), max(finals)),
                gap=statistics.mean(gaps) if gaps else None,
                exposed_s=statistics.mean(exposed) if exposed else (max(0.0, step_s - alone_s) if alone_s else None),
                exposed_estimated=estimated,
            )
        )
    return rows
