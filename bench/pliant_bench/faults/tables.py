"""Cells of tables for the points: ranks that go on, ranks that end, and surprises. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from pliant_bench.faults.points import is_elastic

__all__ = ["KILL_NOTE", "is_expected", "kill_tables"]

KILL_NOTE = (
    "Seconds from the loss: median (largest). To go on: until the slowest took its first step in a new group; who was "
    "stopped and goes on before anybody has given it up costs no new group. Stood still: the longest time in which one "
    "of the others took no step. Steps: the median time of a step in the new group over that before the loss; where "
    "ranks share cores, fewer are faster. Accuracy: points above an undisturbed run of the same seed: mean, range. "
    "Named: by all others, in the error that ended them."
)

Record = dict[str, Any]
TableOf = tuple[str, list[str], list[list[str]]]


def is_expected(record: Record) -> bool:
    """Return whether a point came out as promised: others go on, and who comes back joins; or all end and name it."""
    if is_elastic(record["arm"]):
        return record["outcome"] == "went on" and record["back"] in (None, "joined", "too late")
    errors = record["failed"].values()
    named_by_all = record["named_by"] == len(errors) and all(text.startswith("CommError") for text in errors)
    return record["outcome"] == "ended" and named_by_all


def kill_tables(records: Sequence[Record]) -> list[TableOf]:
    """Return title, head and cells of each table that has rows."""
    points = [r for r in records if r["kind"] == "kill"]
    undisturbed = {r["arm"]: r for r in records if r["kind"] == "undisturbed"}
    arms = list(dict.fromkeys(r["arm"] for r in points))
    on = [[r for r in points if r["arm"] == arm] for arm in arms if is_elastic(arm)]
    end = [[r for r in points if r["arm"] == arm] for arm in arms if not is_elastic(arm)]
    counts = ["arm", "killed", "stopped", "went on", "ended", "hung"]
    goes_on = [*counts, "to go on, s", "stood still, s", "joined again", "after, s", "steps", "accuracy"]
    ends = [*counts, "all ended after, s", "named"]
    wrong = [["-", arm, "none", _what_came(r)] for arm, r in undisturbed.items() if r["outcome"] != "went on"]
    wrong += [[str(r["number"]), r["arm"], r["signal"], _what_came(r)] for r in points if not is_expected(r)]
    tables: list[TableOf] = [
        ("a rank is lost, and the others go on", goes_on, _with_all(on, lambda own: _on_cells(own, undisturbed))),
        ("a rank is lost, and the others end", ends, _with_all(end, _end_cells)),
        ("not as it should be", ["point", "arm", "signal", "what came"], wrong),
    ]
    return [table for table in tables if table[2]]


def _with_all(groups: Sequence[list[Record]], cells: Any) -> list[list[str]]:
    rows = [[own[0]["arm"], *cells(own)] for own in groups]
    return [*rows, ["all", *cells([r for own in groups for r in own])]] if groups else []


def _counts(own: Sequence[Record]) -> list[str]:
    outcomes = [r["outcome"] for r in own]
    stopped = sum(r["signal"] == "STOP" for r in own)
    return [str(n) for n in (len(own) - stopped, stopped, *map(outcomes.count, ("went on", "ended", "hung")))]


def _on_cells(own: Sequence[Record], undisturbed: dict[str, Record]) -> list[str]:
    back = [r for r in own if r["back"] is not None]
    ratios = [r["step_after_s"] / r["step_before_s"] for r in own if r["step_after_s"] and r["step_before_s"]]
    gaps = [
        100 * (r["accuracy"] - undisturbed[r["arm"]]["accuracy"])
        for r in own
        if r["accuracy"] is not None and undisturbed.get(r["arm"], {}).get("accuracy") is not None
    ]
    return [
        *_counts(own),
        _middle_and_most([r["next_step_s"] for r in own]),
        _middle_and_most([r["standstill_s"] for r in own]),
        f"{sum(r['back'] == 'joined' for r in back)} of {len(back)}",
        _middle_and_most([r["joined_s"] for r in own]),
        f"{statistics.median(ratios):.2f}x" if ratios else "-",
        f"{statistics.mean(gaps):+.1f} ({min(gaps):+.1f} to {max(gaps):+.1f})" if gaps else "-",
    ]


def _end_cells(own: Sequence[Record]) -> list[str]:
    named = sum(is_expected(r) for r in own)
    return [*_counts(own), _middle_and_most([r["ended_s"] for r in own]), f"{named} of {len(own)}"]


def _middle_and_most(values: Sequence[float | None]) -> str:
    """Return the median and the largest of what there is."""
    there = [value for value in values if value is not None]
    return f"{statistics.median(there):.1f} ({max(there):.1f})" if there else "-"


def _what_came(r: Record) -> str:
    words = f"{r['outcome']}" + (f", the victim {r['back']} {r['back_failed'][:160]}" if r["back"] else "")
    return words + "".join(f"; rank {rank}: {text[:160]}" for rank, text in r["failed"].items())
