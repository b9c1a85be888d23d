"""From lines to the tables that people read: medians, and ratios of paired rounds. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from jobs import ARMS, PLIANT, TORCHREC, UNLIMITED

from pliant.spec.units import format_bytes, format_time

Record = dict[str, Any]
EXACT_THEIRS = tuple(name for name in TORCHREC if "fp16" not in name)
EXACT_OURS = ("pliant", "pliant, ids ahead")

_HEAD = (
    "rate",
    "data and memory",
    "best of TorchRec's",
    "its samples/s",
    "links' share of its step",
    "Pliant's, exact",
    "over it",
    "over its row-wise",
    "over its planner's",
    "over plain rows",
    "Pliant's best",
    "TorchRec's best",
    "over it",
    "AUC apart",
)
_ARMS_HEAD = (
    "arm",
    "what",
    "samples/s",
    "step",
    "lowest to highest",
    "links' share",
    "bytes on links",
    "counted",
    "AUC",
)
_NOTES = """\
- samples/s: of all ranks together, by the median over the rounds of the slowest rank's step. Ratios are those of the
  same round: median (lowest to highest).
- best of TorchRec's: the arm of float32 with the smallest median, of row-, table- and column-wise and its planner's
  choice, with and without the next batch's ids sent ahead. Pliant's, exact: synchronous and float32, with and without
  the next batch ahead. Pliant's best, TorchRec's best: of all arms, also lazy ones and those with 16 bits.
- links' share: the part of the step that goes away in the same processes when links have no limit. What moving bytes
  costs the processors remains, so that communication is more than this.
- bytes on links: what left the busiest host's interface in a step, headers and the dense part's all-reduce too;
  counted: what the busiest rank's collectives must send (torch's calls; our recorder's, for rows alone, where it says
  "rows").
- AUC apart: the largest distance of an exact arm's AUC to that of TorchRec's table-wise, after the same steps.
"""


def markdown(records: Sequence[Record]) -> str:
    """Return a table of ratios, and one of all arms for each cell and rate."""
    limited = [r for r in records if r["rate"] != UNLIMITED]
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(_summary(r, records)) for r in limited]
    lines += ["", _NOTES]
    for r in limited:
        lines += _arms(r, records)
    return "\n".join(lines) + "\n"


def step_s(r: Record, arm: str) -> float:
    """Return the median of an arm's steps, or infinity."""
    found = r["arms"].get(arm)
    return statistics.median(t["step_s"] for t in found) if found else float("inf")


def best(r: Record, arms: Sequence[str]) -> str | None:
    """Return the arm with the least median, of those that were measured."""
    there = [arm for arm in arms if arm in r["arms"]]
    return min(there, key=lambda arm: step_s(r, arm)) if there else None


def ratio(r: Record, theirs: str | None, ours: str | None) -> str:
    """Return how many times as fast ours is, by rounds."""
    if theirs is None or ours is None or theirs not in r["arms"] or ours not in r["arms"]:
        return "-"
    pairs = zip(r["arms"][theirs], r["arms"][ours], strict=True)
    found = [a["step_s"] / b["step_s"] for a, b in pairs]
    return f"{statistics.median(found):.2f}x ({min(found):.2f}-{max(found):.2f})"


def links_share(r: Record, arm: str, records: Sequence[Record]) -> str:
    """Return which part of an arm's step the links' limits are, beside what the same processes did without them."""
    before = records[: records.index(r)]
    free = next((f for f in reversed(before) if f["cell"] == r["cell"] and f["rate"] == UNLIMITED), None)
    if free is None or arm not in free["arms"] or arm not in r["arms"]:
        return "-"
    return f"{max(0.0, 1 - step_s(free, arm) / step_s(r, arm)):.0%}"


def _summary(r: Record, records: Sequence[Record]) -> list[str]:
    theirs, ours = best(r, EXACT_THEIRS), best(r, EXACT_OURS)
    any_of_theirs = best(r, tuple(TORCHREC))
    any_of_ours = best(r, [name for name in PLIANT if name != "plain rows"])
    rate = r["rate"] + (" (links wrong)" if r["links_wrong"] else "")
    if theirs is None:
        return [rate, r["cell"], "none was measured", *["-"] * (len(_HEAD) - 3)]
    return [
        rate,
        r["cell"],
        theirs.removeprefix("torchrec "),
        f"{r['samples'] / step_s(r, theirs):,.0f}",
        links_share(r, theirs, records),
        f"{r['samples'] / step_s(r, ours):,.0f}" if ours else "-",
        ratio(r, theirs, ours),
        ratio(r, "torchrec row_wise", ours),
        ratio(r, "torchrec planner", ours),
        ratio(r, "plain rows", ours),
        any_of_ours or "-",
        any_of_theirs or "-",
        ratio(r, any_of_theirs, any_of_ours),
        _apart(r),
    ]


def _apart(r: Record) -> str:
    if "auc" not in r or "torchrec table_wise" not in r["auc"]["auc"]:
        return "-"
    found, exact = r["auc"]["auc"], r["auc"]["exact"]
    return f"{max(abs(found[arm] - found['torchrec table_wise']) for arm in found if exact[arm]):.5f}"


def _arms(r: Record, records: Sequence[Record]) -> list[str]:
    lines = [f"**{r['cell']}, {r['rate']}**", ""]
    if r["links_wrong"]:
        lines += [f"Links were not what was asked for: {'; '.join(r['links_wrong'])}.", ""]
    lines += [_line(_ARMS_HEAD), _line(["---"] * len(_ARMS_HEAD))]
    about = {made["arm"]: made["about"] for made in r["made"]}
    counted = {tried["arm"]: tried for tried in r["tried"]}
    for arm in [arm for arm in ARMS if arm in r["arms"]]:
        rounds = r["arms"][arm]
        steps = [t["step_s"] for t in rounds]
        own = statistics.median(t["own_bytes"] for t in rounds)
        lines.append(
            _line(
                [
                    arm,
                    about[arm],
                    f"{r['samples'] / statistics.median(steps):,.0f}",
                    format_time(statistics.median(steps)),
                    f"{format_time(min(steps))} to {format_time(max(steps))}",
                    links_share(r, arm, records),
                    format_bytes(statistics.median(t["link_bytes"] for t in rounds)),
                    f"rows {format_bytes(own)}" if own else format_bytes(counted[arm]["counted_bytes"]),
                    f"{r['auc']['auc'][arm]:.5f}" if "auc" in r else "-",
                ]
            )
        )
    lines.append("")
    lines += [f"- {left['arm']} was left out: {left['why']}" for left in r["left out"] if left["rate"] == r["rate"]]
    lines += [f"- {no['arm']} could not be made: {no['why']}" for no in r["refused"]]
    if "auc" in r:
        lines.append(f"- AUC after {r['auc']['steps']} steps; no model can do better than {r['auc']['best']:.4f}")
    lines += ["", f"`{r['command']}`, {r['machine']}, load before {r['load_before']:.1f}, {r['time']}", ""]
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
