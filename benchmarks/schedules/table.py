"""From records to the tables that people read: medians, and ratios of paired rounds. Pure."""

import statistics
from typing import Any

from pliant.spec.units import format_time

_HEAD = ("arm", "what", "rounds", "measured", "lowest to highest", "model", "measured / model", "dense / this")
_NOTES = """\
- measured: median over the rounds, of the slowest rank. Calls that take less than 150 ms are timed several together.
- model: alpha, beta and gamma with the default overheads (150 us a message, 5 % on the wire), and the exact blocks.
- dense / this: the dense all-reduce's time over this one's, in the same round: median (lowest to highest).
- dense and agreed mask sum other elements than the rest: all; the blocks with the largest sums of scores.
- two levels: of the shapes with two levels the one that is predicted to be fastest.
- SparseSum: with the all-gather of who holds what; with new blocks also the choice, its proof and comparison.
"""


def markdown(result: dict[str, Any]) -> str:
    """Return a table per topology and density, with how it came about."""
    lines: list[str] = []
    for run in result["runs"]:
        lines += [f"## {run['topology']}", ""]
        if run["links_wrong"]:
            lines += [f"**Links were not what was asked for: {'; '.join(run['links_wrong'])}.**", ""]
        for found in run["densities"]:
            lines += _table(found)
        lines += [f"`{run['command']}`, {run['machine']}, {run['time']}, {format_time(run['took_s'])}", ""]
    return "\n".join([*lines, _NOTES])


def _table(found: dict[str, Any]) -> list[str]:
    records = found["records"]
    dense = records[0]["seconds"]
    head = (
        f"**{records[0]['density']:.2%} of the blocks on each rank**, {found['union']:.1%} on any; {len(dense)} rounds"
    )
    lines = [head, "", _line(_HEAD), _line(["---"] * len(_HEAD))]
    for r in records:
        middle_s = statistics.median(r["seconds"])
        ratios = [a / b for a, b in zip(dense, r["seconds"], strict=True)]
        lines.append(
            _line(
                [
                    r["arm"],
                    r["about"],
                    str(r["rounds"] or "-"),
                    format_time(middle_s),
                    f"{format_time(min(r['seconds']))} to {format_time(max(r['seconds']))}",
                    format_time(r["predicted_s"]),
                    f"{middle_s / r['predicted_s']:.2f}",
                    f"{statistics.median(ratios):.1f}x ({min(ratios):.1f}-{max(ratios):.1f})",
                ]
            )
        )
    return [*lines, ""]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
