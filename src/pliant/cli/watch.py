"""Live page of a run in the terminal, from the file that `Run.log_to` writes."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, cast

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pliant.metrics import read_rows
from pliant.spec.files import write_atomically
from pliant.spec.units import format_bytes, format_time

__all__ = ["summary", "watch"]

Row = dict[str, float | str]

_OURS = frozenset(
    (
        *("step", "unix_s", "step_s", "exposed_s", "sent_bytes", "received_bytes", "bytes_vs_ddp", "plan"),
        *("plan_switches", "residual_norm"),
    )
)
_RECENT_S, _MINUTES = 60.0, 5
_BARS = "▁▂▃▄▅▆▇█"


def watch(
    path: Annotated[Path, typer.Argument(help="A log of run.log_to(), .csv or .jsonl, or a folder with one.")],
    once: Annotated[bool, typer.Option("--once", help="Print the page once, also of a finished run, and end.")] = False,
    refresh: Annotated[float, typer.Option(help="Seconds from one look at the file to the next.")] = 2.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, and end.")] = None,
) -> None:
    """Show what a run's steps take, wait and send, its plan, and its losses of the last minutes."""
    if refresh <= 0:
        raise ValueError(f"--refresh is {refresh:g} seconds, but time must pass between two looks; give 0.5 or more.")
    file = _log_in(path)
    figures = summary(read_rows(file))
    if json_file is not None:
        write_atomically(json_file, json.dumps(_plain(figures), indent=2, allow_nan=False) + "\n")
    console = Console()
    if once or json_file is not None:
        console.print(_page(file, figures))
        return
    with Live(_page(file, figures), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(refresh)
                live.update(_page(file, summary(read_rows(file))), refresh=True)
        except KeyboardInterrupt:
            return


def summary(rows: Sequence[Row]) -> dict[str, float | str | list[float]]:
    """Return the figures of a page: of the last minute before the last row, or of that row alone.

    A step's time is the median, since other things may happen between two steps; what it waits and sends is the mean.
    A value that the training loop has logged is a list: means of the last minutes, one each, and the last value.
    """
    if not rows:
        return {}
    end_s = float(rows[-1].get("unix_s", 0.0))
    recent = [row for row in rows if end_s - float(row.get("unix_s", 0.0)) <= _RECENT_S]
    figures: dict[str, float | str | list[float]] = {"step": rows[-1]["step"], "unix_s": end_s}
    for name, mean in (("step_s", median), ("exposed_s", fmean), ("sent_bytes", fmean), ("received_bytes", fmean)):
        if values := [float(row[name]) for row in recent if name in row]:
            figures[name] = mean(values)
    for name in ("bytes_vs_ddp", "plan", "plan_switches", "residual_norm"):
        if (found := next((row[name] for row in reversed(rows) if name in row), None)) is not None:
            figures[name] = found
    own = {
        name: None for row in rows for name, value in row.items() if name not in _OURS and not isinstance(value, str)
    }
    return figures | {name: _by_minute(rows, name, end_s) for name in own}


def _by_minute(rows: Sequence[Row], name: str, end_s: float) -> list[float]:
    """Return a value's means over the last minutes, oldest first, without empty ones; and its last value."""
    minutes: dict[int, list[float]] = {}
    last = 0.0
    for row in rows:
        if name in row and not isinstance(row[name], str):
            last = float(row[name])
            minutes.setdefault(int((end_s - float(row.get("unix_s", 0.0))) // 60), []).append(last)
    recent = [minutes[k] for k in sorted(minutes, reverse=True) if k < _MINUTES]
    return [*(sum(values) / len(values) for values in recent), last]


def _page(file: Path, figures: dict[str, float | str | list[float]]) -> Panel:
    if not figures:
        return Panel("no step was logged yet", title=str(file), expand=False)
    table = Table.grid(padding=(0, 2))
    for name, value in figures.items():
        if told := _told(name, value, figures):
            table.add_row(Text(name if isinstance(value, list) else _NAMES[name]), Text(told))
    age_s = max(0.0, time.time() - float(figures["unix_s"]))  # pyright: ignore[reportArgumentType]
    return Panel(Group(table, Text(f"last row {age_s:.0f} s ago", style="dim")), title=str(file), expand=False)


_NAMES = {
    "step": "step",
    "plan": "plan",
    "step_s": "a step takes",
    "exposed_s": "of it waiting",
    "sent_bytes": "sent in a step",
    "received_bytes": "received in a step",
    "bytes_vs_ddp": "DDP would send",
    "residual_norm": "norm of residuals",
    "plan_switches": "switches of plan",
    "unix_s": "",
}


def _told(name: str, value: float | str | list[float], figures: dict[str, float | str | list[float]]) -> str:
    """Say a figure for people; nothing if there is nothing to say."""
    if isinstance(value, list):
        return f"{value[-1]:.5g}   {_bars(value[:-1])}  by minute"
    if isinstance(value, str) or name in ("step", "plan_switches"):
        return str(value) if isinstance(value, str) else f"{value:.0f}"
    if name == "exposed_s":
        step_s = figures.get("step_s")
        share = f" ({value / step_s:.0%})" if isinstance(step_s, float) and step_s > 0 else ""
        return format_time(value) + share
    if name == "bytes_vs_ddp":
        return f"{1 / value:.2g}x the bytes" if value > 0 else ""
    says = {"step_s": format_time, "sent_bytes": format_bytes, "received_bytes": format_bytes}
    return says[name](value) if name in says else f"{value:.4g}" if name == "residual_norm" else ""


def _bars(values: Sequence[float]) -> str:
    """Return a bar for each value, and a cross for one that is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    top = len(_BARS) - 1

    def bar(value: float) -> str:
        return _BARS[round((value - low) / (high - low) * top) if high > low else 0] if math.isfinite(value) else "×"

    return "".join(map(bar, values))


def _plain(figure: Any) -> Any:
    """Return figures for JSON, which has no word for what is not finite: null."""
    if isinstance(figure, dict):
        return {name: _plain(each) for name, each in cast(dict[str, Any], figure).items()}
    if isinstance(figure, list):
        return [_plain(each) for each in cast(list[Any], figure)]
    return None if isinstance(figure, float) and not math.isfinite(figure) else figure


def _log_in(path: Path) -> Path:
    """Return the log, or the one in a folder that was written last. Raises ValueError if there is none."""
    if path.is_dir():
        found = [file for kind in ("*.csv", "*.jsonl") for file in path.glob(kind)]
        if not found:
            raise ValueError(f"{path} holds no .csv and no .jsonl; log a run with run.log_to('{path}/run.csv') first.")
        return max(found, key=lambda file: file.stat().st_mtime)
    if not path.is_file():
        raise ValueError(f"{path} is not there; name the file that the run logs to, as in run.log_to('run.csv').")
    return path
