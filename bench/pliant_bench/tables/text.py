"""The figures as cells of a table, for a terminal and for a page. Pure."""

from collections.abc import Sequence
from typing import Any

from pliant.spec.units import format_bytes, format_time
from pliant_bench.faults.tables import KILL_NOTE, kill_tables
from pliant_bench.harness.metric import METRICS, Metric
from pliant_bench.tables.grid_tables import GRID_NOTE, grid_tables
from pliant_bench.tables.results import TimeRow, TrainRow, time_rows, train_rows
from pliant_bench.tables.winners import grid_rows

__all__ = ["footnote", "markdown", "tables", "time_table", "train_table"]

_NOTE = (
    "* by formula (bytes) or as the difference to computing alone (exposed), not counted by the run.  "
    "† ended by --max-seconds, before its schedule was."
)


def footnote(result: dict[str, Any]) -> str:
    """Return what the signs and words of the tables mean."""
    return {"grid": GRID_NOTE, "kill": KILL_NOTE}.get(result["setup"]["mode"], _NOTE)


def tables(result: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return title, head and cells of each table that a benchmark's records fill."""
    setup, records = result["setup"], result["records"]
    if setup["mode"] == "grid":
        return grid_tables(*grid_rows(result))
    if setup["mode"] == "kill":
        return kill_tables(records)
    network, metric = setup["provenance"]["network"], METRICS[setup["task"]]
    both = [
        (f"training: {network}", *train_table(train_rows(records, metric), setup["target"], metric)),
        (f"step times, {_data(setup)}: {network}", *time_table(time_rows(records, setup["rate_bytes_per_s"]))),
    ]
    return [table for table in both if table[2]]


def _data(setup: dict[str, Any]) -> str:
    return "your data" if setup.get("own") else "made-up data"


def markdown(result: dict[str, Any]) -> str:
    """Return the tables for a file that people read, with how they came about."""
    lines: list[str] = []
    for title, head, cells in tables(result):
        lines += [f"**{title}**", "", _line(head), _line(["---"] * len(head)), *(_line(row) for row in cells), ""]
    lines += [footnote(result).replace("*", "\\*"), ""]
    lines += [f"- {key}: `{value}`" for key, value in result["setup"]["provenance"].items()]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("*", "\\*").replace("|", "\\|") for cell in cells) + " |"


def train_table(
    rows: Sequence[TrainRow], target: float, metric: Metric = METRICS["images"]
) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the comparison by training."""
    head = [
        "arm",
        f"time to {metric.goal(target)}",
        "step",
        "sent a step",
        "on the wire",
        metric.name,
        "vs bf16",
        "exposed",
    ]
    return head, [_train_cells(r, metric) for r in rows]


def time_table(rows: Sequence[TimeRow]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the comparison of step times."""
    head = [
        "arm",
        "model",
        "step",
        "DDP's over it",
        "over compute",
        "sent a step",
        "on the wire",
        "exposed",
        "of bound",
    ]
    return head, [_time_cells(r) for r in rows]


def _train_cells(r: TrainRow, metric: Metric) -> list[str]:
    low, high = (metric.text(value) for value in r.final_range)
    several = f" ({low}-{high})" if high != low else ""
    return [
        r.arm,
        "not reached" if r.time_to_target_s is None else f"{r.time_to_target_s:.1f} s",
        format_time(r.step_s),
        _bytes(r.sent_bytes, counted=r.counted),
        "-" if r.wire_bytes is None else format_bytes(r.wire_bytes),
        metric.text(r.final) + several + (" †" if r.capped else ""),
        "-" if r.gap is None else f"{r.gap:+.2f}",
        _exposed(r.exposed_s, estimated=r.exposed_estimated),
    ]


def _time_cells(r: TimeRow) -> list[str]:
    return [
        r.arm,
        r.model,
        format_time(r.step_s),
        _ratio(r.speedup, r.speedup_spread),
        _ratio(r.over_compute, r.over_compute_spread),
        _bytes(r.sent_bytes, counted=r.counted),
        "-" if r.wire_bytes is None else format_bytes(r.wire_bytes),
        "-" if r.arm == "compute" else _exposed(r.exposed_s, estimated=r.exposed_estimated),
        "-" if r.efficiency is None or r.arm == "compute" else f"{r.efficiency:.0%}",
    ]


def _ratio(value: float | None, quartiles: tuple[float, float] | None) -> str:
    if value is None or quartiles is None:
        return "-"
    return f"{value:.2f}x ({quartiles[0]:.2f}-{quartiles[1]:.2f})"


def _bytes(value: float, *, counted: bool) -> str:
    return format_bytes(value) + ("" if counted else " *")


def _exposed(value_s: float | None, *, estimated: bool) -> str:
    return "-" if value_s is None else format_time(value_s) + (" *" if estimated else "")
