"""From records to the table that people read: medians, and ratios of paired rounds. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from jobs import PAIRS

from pliant.spec.units import format_bytes, format_time

Record = dict[str, Any]

_HEAD = (
    "peer",
    "Pliant's arm",
    "step, peer",
    "step, Pliant",
    "peer's over Pliant's",
    "wire a step, peer",
    "Pliant",
    "accuracy, peer",
    "Pliant",
    "ranks apart, peer",
    "Pliant",
)
_NOTES = """\
- step: wall time of whole periods, exchange included, over their steps; median of the rounds. The ratio is that of a
  round's two runs: median (lowest to highest).
- wire a step: what the busiest host's interface sent in the timed steps, headers and heartbeats too, over the steps.
- accuracy: on all 10,000 test images at the end, each rank judging its part with its own weights; mean of the rounds.
- ranks apart: the largest distance of a rank's weights to their mean, over the norm of the mean, after the last step.
"""


def markdown(result: dict[str, Any]) -> str:
    """Return one table per model, with how it came about."""
    records: list[Record] = result["records"]
    lines: list[str] = []
    for model in dict.fromkeys(r["model"] for r in records):
        lines += [f"**{model}**: {result['network']}", "", _line(_HEAD), _line(["---"] * len(_HEAD))]
        lines += [_line(_row(peer, model, records)) for peer in PAIRS if _of(peer, model, records)]
        lines.append("")
    lines += [_NOTES]
    lines += [f"- {peer}: {PAIRS[peer].same}." for peer in PAIRS if any(r["peer"] == peer for r in records)]
    lines += ["", "Made in parts:", ""]
    lines += ["- " + ", ".join(f"{key} `{value}`" for key, value in part.items()) for part in result["provenance"]]
    return "\n".join(lines) + "\n"


def _of(peer: str, model: str, records: Sequence[Record]) -> list[Record]:
    return [r for r in records if (r["peer"], r["model"]) == (peer, model)]


def _row(peer: str, model: str, records: Sequence[Record]) -> list[str]:
    runs = _of(peer, model, records)
    arm = f"`{PAIRS[peer].pliant}`"
    name = f"{peer} ({runs[0]['version']})"
    error = next((r["error"] for r in runs if "error" in r), None)
    if error is not None:
        return [name, arm, f"did not run: {error}", *["-"] * (len(_HEAD) - 3)]
    sides = [{r["round"]: r for r in runs if r["side"] == side} for side in ("peer", "pliant")]
    rounds = sorted(sides[0].keys() & sides[1].keys())  # an interrupted one has one side only
    if not rounds:
        return [name, arm, "not finished", *["-"] * (len(_HEAD) - 3)]
    theirs, ours = ([side[r] for r in rounds] for side in sides)
    ratios = [a["step_s"] / b["step_s"] for a, b in zip(theirs, ours, strict=True)]
    return [
        name,
        arm,
        *(format_time(statistics.median(r["step_s"] for r in side)) for side in (theirs, ours)),
        f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})",
        *(format_bytes(statistics.median(r["wire_bytes"] for r in side)) for side in (theirs, ours)),
        *(_accuracy(side) for side in (theirs, ours)),
        *(f"{max(r['distance'] for r in side):.1e}" for side in (theirs, ours)),
    ]


def _accuracy(runs: Sequence[Record]) -> str:
    found = [r["accuracy"] for r in runs if r["accuracy"] is not None]
    return f"{statistics.mean(found):.2%}" if found else "-"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
