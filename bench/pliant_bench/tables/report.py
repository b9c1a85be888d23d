"""One self-contained HTML page from a benchmark's JSON, plots included. Pure: no torch, no network."""

import html
from collections.abc import Sequence
from typing import Any

from pliant.cli.page import document, plot, table
from pliant_bench.harness.metric import METRICS, Metric
from pliant_bench.tables.results import TrainRow, time_rows, train_rows
from pliant_bench.tables.text import footnote, tables, time_table, train_table
from pliant_bench.tables.verdict import next_steps, verdict_of
from pliant_bench.tables.winners import grid_rows, is_ours

__all__ = ["page"]


def page(result: dict[str, Any]) -> str:
    """Return the page of a result that `pliant bench --json` has written."""
    setup = result["setup"]
    parts = {"grid": _grid_parts, "kill": _table_parts}.get(setup["mode"], _parts)(result)
    parts.append(f'<p class="note">{html.escape(footnote(result))}</p>')
    return document("Pliant bench", setup["provenance"], parts, verdict_of(result))


def _parts(result: dict[str, Any]) -> list[str]:
    from pliant_bench.tables.figures import step_figures, train_figures

    setup, records = result["setup"], result["records"]
    target, metric = setup["target"], METRICS[setup["task"]]
    trained, timed = train_rows(records, metric), time_rows(records, setup["rate_bytes_per_s"])
    parts: list[str] = []
    if trained:
        parts += [f"<h2>Training to {metric.name} {metric.goal(target)}</h2>"]
        parts += [_table(*train_table(trained, target, metric))]
        parts += map(plot, train_figures(records, trained, target, metric))
        parts.append(
            '<p class="note">Time is training time; evaluation is not counted. On the way a model is judged by a part '
            "of what is held out, at the end by all of it. Dotted: torch's DDP and its hooks.</p>"
        )
        parts += ["<h2>What next</h2>", _next(trained, metric)]
    if timed:
        parts += ["<h2>Step times</h2>", _table(*time_table(timed)), *map(plot, step_figures(timed))]
        parts.append(
            f'<p class="note">{_learned(setup)} All arms take turns in each round; a ratio is the '
            "median of the rounds' ratios, with quartiles. Of bound: the time that the busiest host's bytes need at "
            "the link's rate, over step time.</p>"
        )
    return parts


def _next(trained: Sequence[TrainRow], metric: Metric) -> str:
    steps = "".join(
        f"<dt>{html.escape(words)}</dt><dd><code>{html.escape(line)}</code></dd>"
        for words, line in next_steps(trained, metric)
    )
    return f"<dl>{steps}</dl>"


def _learned(setup: dict[str, Any]) -> str:
    return "Your data." if setup.get("own") else "Made-up data: nothing is learned here."


def _grid_parts(result: dict[str, Any]) -> list[str]:
    from pliant_bench.tables.grid_figures import grid_figures

    rows, _ = grid_rows(result)
    (title, head, cells), *others = tables(result)
    parts = [f"<h2>{html.escape(title)}</h2>", _table(head, cells), *map(plot, grid_figures(rows))]
    parts.append(
        '<p class="note">Where two lines cross, another arm is the best. Dotted: torch\'s DDP and its hooks.</p>'
    )
    for title, head, cells in others:
        parts += [f"<h2>{html.escape(title)}</h2>", _table(head, cells)]
    return parts


def _table_parts(result: dict[str, Any]) -> list[str]:
    return [part for title, head, cells in tables(result) for part in (f"<h2>{title}</h2>", _table(head, cells))]


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    return table(head, cells, is_ours)
