"""Fastest algorithm of each cell of a grid, from step times and trainings. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.spec.reading import made_by, read_json
from pliant_bench.harness.metric import METRICS, Metric

__all__ = ["EXACT_PEERS", "CellRow", "Trained", "cell_rows", "grid_rows", "is_ours", "read_trained"]

EXACT_PEERS = ("ddp", "ddp-bf16")
"""What the best arm of a cell is held against."""

Record = dict[str, Any]


def is_ours(arm: str) -> bool:
    """Return whether an arm is Pliant's."""
    return arm != "compute" and not arm.startswith("ddp")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Outcome of the trainings of one arm."""

    model: str
    steps: float | None
    """To the target, mean over seeds; None if a seed did not get there."""
    gap: float | None
    """Mean over seeds of how much better than 16-bit DDP it ended; None without that to compare with."""
    keeps: bool
    """Whether it ended no worse than the tolerance allows; False for one that was ended before its schedule was."""


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One cell of a grid."""

    model: str
    rate: str
    delay: str
    slow_share: float
    compute_s: float
    step_s: dict[str, float]
    """Arm -> median over rounds."""
    over_compute: dict[str, float]
    """Arm -> median of the rounds' ratios."""
    to_target_s: dict[str, float]
    """Arm -> step time times steps to the target, of those that reach it, but for free paces."""
    peer: str | None
    """The exact peer that is fastest, to the target if that is known."""
    best: str | None
    """The arm of Pliant's that is fastest, to the target if that is known, of those that keep the accuracy."""
    gain: float | None
    """The peer's time over the best arm's."""
    communication: float | None
    """Part of the peer's step that is not computing."""
    links_as_asked: bool
    """Whether each link, measured before the cell, was within a quarter of what was asked for."""


def read_trained(paths: Sequence[Path]) -> dict[str, Trained]:
    """Return arm -> what files of `pliant bench --train --json` say together.

    Trainings of an arm in several files count as seeds of one. Each is held against 16-bit DDP of the same seed in its
    own file, or else in another one.

    Raises:
        ValueError: A file is another one, or is of another model or target.

    """
    kinds: set[tuple[str, float]] = set()
    metric, files = METRICS["images"], list[list[Record]]()
    for path in paths:
        result = read_json(path)
        with made_by("pliant bench --train --json", path):
            setup = result["setup"]
            if setup["mode"] != "train":
                raise ValueError(f"--accuracy {path} is a benchmark of mode {setup['mode']}; give one of --train.")
            kinds.add((setup["models"][0], float(setup.get("target", setup.get("target_accuracy")))))
            metric = METRICS[setup.get("task", "images")]
            files.append([r for r in result["records"] if r["kind"] == "train"])
    if len(kinds) > 1:
        found = ", ".join(f"{model} to {target:g}" for model, target in sorted(kinds))
        raise ValueError(f"--accuracy files are of different trainings ({found}); give files of one model and target.")
    with made_by("pliant bench --train --json", " or ".join(map(str, paths))):
        return {arm: _trained(*kind, metric, runs) for kind in kinds for arm, runs in _by_arm(metric, files).items()}


def _by_arm(metric: Metric, files: Sequence[Sequence[Record]]) -> dict[str, list[tuple[Record, float | None]]]:
    """Return arm -> its trainings, each with its gap to 16-bit DDP of the same seed, if there is any."""
    final = f"final_{metric.name}"
    own = [{r["seed"]: r[final] for r in runs if r["arm"] == "ddp-bf16" and not r["capped"]} for runs in files]
    anywhere = {seed: value for each in reversed(own) for seed, value in each.items()}
    found: dict[str, list[tuple[Record, float | None]]] = {}
    for runs, beside in zip(files, own, strict=True):
        for r in runs:
            base = beside.get(r["seed"], anywhere.get(r["seed"]))
            found.setdefault(r["arm"], []).append((r, None if base is None else metric.gap(r[final], base)))
    return found


def _trained(model: str, target: float, metric: Metric, runs: Sequence[tuple[Record, float | None]]) -> Trained:
    steps = [metric.step_to(target, r["curve"]) for r, _ in runs]
    reached = [step for step in steps if step is not None]
    capped = any(r["capped"] for r, _ in runs)  # its end is not that of the others
    gaps = [] if capped else [gap for _, gap in runs if gap is not None]
    gap = statistics.mean(gaps) if gaps else None
    return Trained(
        model=model,
        steps=statistics.mean(reached) if len(reached) == len(runs) else None,
        gap=gap,
        keeps=not capped and (gap is None or gap >= -metric.tolerance),
    )


def grid_rows(result: Record) -> tuple[list[CellRow], dict[str, Trained]]:
    """Return the rows of a grid's result, and what trainings say that it has beside them."""
    trained = {arm: Trained(**fields) for arm, fields in result["trained"].items()}
    return cell_rows(result["records"], trained), trained


def cell_rows(records: Sequence[Record], trained: dict[str, Trained]) -> list[CellRow]:
    """Return a row per cell, in the order of the records."""
    return [_cell_row(r, trained) for r in records if r["kind"] == "cell"]


def _cell_row(r: Record, trained: dict[str, Trained]) -> CellRow:
    arms = r["arms"]
    known = {arm: t for arm, t in trained.items() if t.model == r["model"]}
    steps = {arm: t.steps for arm, t in known.items() if arm in arms and not arms[arm]["free"] and t.steps is not None}
    step_s = {arm: statistics.median(found["step_s"]) for arm, found in arms.items()}
    to_target_s = {arm: step_s[arm] * num for arm, num in steps.items()}
    times = to_target_s if known else {arm: s for arm, s in step_s.items() if arm != "compute"}
    peer = min((arm for arm in EXACT_PEERS if arm in times), key=times.__getitem__, default=None)
    kept = [arm for arm in times if is_ours(arm) and (arm not in known or known[arm].keeps)]
    best = min(kept, key=times.__getitem__, default=None)
    gain = None
    if peer is not None and best is not None:
        gain = statistics.median(_ratios(arms, peer, best)) * (steps[peer] / steps[best] if known else 1.0)
    return CellRow(
        model=r["model"],
        rate=r["rate"],
        delay=r["delay"],
        slow_share=r["slow_share"],
        compute_s=step_s["compute"],
        step_s=step_s,
        over_compute={arm: statistics.median(_ratios(arms, arm, "compute")) for arm in arms},
        to_target_s=to_target_s,
        peer=peer,
        best=best,
        gain=gain,
        communication=None if peer is None else max(0.0, 1 - step_s["compute"] / step_s[peer]),
        links_as_asked=not r["links_wrong"],
    )


def _ratios(arms: dict[str, Any], above: str, below: str) -> list[float]:
    return [a / b for a, b in zip(arms[above]["step_s"], arms[below]["step_s"], strict=True)]
