"""One self-contained HTML page from a benchmark's JSON, plots included. Pure: no torch, no network."""

import html
from collections.abc import Sequence
from typing import Any

from pliant.cli.bench.crossing import grid_rows, is_ours
from pliant.cli.bench.metric import METRICS
from pliant.cli.bench.results import time_rows, train_rows
from pliant.cli.bench.tables import footnote, tables, time_table, train_table

__all__ = ["page"]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:1080px;margin:2.5rem auto;padding:0 1.2rem;color:#1d2733}
h1{font-size:1.7rem;margin-bottom:.4rem} h2{margin-top:2.4rem;font-size:1.25rem} .note{color:#5a6875;font-size:.9rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0;font-size:.93rem}
dt{color:#5a6875} dd{margin:0} .wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem;white-space:nowrap}
th{text-align:right;border-bottom:2px solid #1d2733;padding:.35rem .6rem;font-weight:600}
td{text-align:right;border-bottom:1px solid #e2e7ec;padding:.35rem .6rem}
th:first-child,td:first-child{text-align:left} tr.ours td:first-child{font-weight:600;color:#0b6e4f}
.plot{margin-top:1.8rem}
"""


def page(result: dict[str, Any]) -> str:
    """Return the page of a result that `pliant bench --json` has written."""
    setup = result["setup"]
    parts = {"grid": _grid_parts, "kill": _table_parts}.get(setup["mode"], _parts)(result)
    parts.append(f'<p class="note">{html.escape(footnote(result))}</p>')
    facts = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in setup["provenance"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pliant bench</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style><script>{_plotly_source()}</script></head><body><h1>Pliant bench</h1>"
        f"<dl>{facts}</dl>{''.join(parts)}</body></html>\n"
    )


def _parts(result: dict[str, Any]) -> list[str]:
    from pliant.cli.bench.figures import step_figures, train_figures

    setup, records = result["setup"], result["records"]
    target, metric = setup["target"], METRICS[setup["task"]]
    trained, timed = train_rows(records, metric), time_rows(records, setup["rate_bytes_per_s"])
    parts: list[str] = []
    if trained:
        parts += [f"<h2>Training to {metric.name} {metric.goal(target)}</h2>"]
        parts += [_table(*train_table(trained, target, metric))]
        parts += map(_plot, train_figures(records, trained, target, metric))
        parts.append(
            '<p class="note">Time is training time; evaluation is not counted. On the way a model is judged by a part '
            "of what is held out, at the end by all of it. Dotted: torch's DDP and its hooks.</p>"
        )
    if timed:
        parts += ["<h2>Step times</h2>", _table(*time_table(timed)), *map(_plot, step_figures(timed))]
        parts.append(
            '<p class="note">Made-up data: nothing is learned here. All arms take turns in each round; a ratio is the '
            "median of the rounds' ratios, with quartiles. Of bound: the time that the busiest host's bytes need at "
            "the link's rate, over step time.</p>"
        )
    return parts


def _grid_parts(result: dict[str, Any]) -> list[str]:
    from pliant.cli.bench.grid_figures import grid_figures

    rows, _ = grid_rows(result)
    (title, head, cells), *others = tables(result)
    parts = [f"<h2>{html.escape(title)}</h2>", _table(head, cells), *map(_plot, grid_figures(rows))]
    parts.append(
        '<p class="note">Where two lines cross, another arm is the best. Dotted: torch\'s DDP and its hooks.</p>'
    )
    for title, head, cells in others:
        parts += [f"<h2>{html.escape(title)}</h2>", _table(head, cells)]
    return parts


def _table_parts(result: dict[str, Any]) -> list[str]:
    return [part for title, head, cells in tables(result) for part in (f"<h2>{title}</h2>", _table(head, cells))]


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    def row(values: Sequence[str]) -> str:
        kind = ' class="ours"' if is_ours(values[0]) else ""
        return f"<tr{kind}>" + "".join(f"<td>{html.escape(v)}</td>" for v in values) + "</tr>"

    heads = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join(map(row, cells))
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _plotly_source() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _plot(figure: Any) -> str:
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False})
    return f'<div class="plot">{drawn}</div>'
