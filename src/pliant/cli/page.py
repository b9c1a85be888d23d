"""Self-contained HTML pages: a verdict, tables, and plots that need no network. No torch here."""

import base64
import html
import string
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pliant.spec.files import write_atomically

__all__ = ["document", "layout", "plot", "require_plotly", "table", "write_figure"]

_KEY_COLUMNS = 4
"""Columns that a phone shows; all of them open beneath."""


def document(title: str, facts: Mapping[str, str], parts: Sequence[str], verdict: str = "") -> str:
    """Return a whole page.

    Args:
        title: Its title.
        facts: How its figures came about; they stand at the end.
        parts: Tables, plots and headings, as HTML.
        verdict: What the page says in one sentence; it stands first.

    """
    parts_html = "\n".join(parts)
    return string.Template(_resource("page.html").decode()).substitute(
        title=html.escape(title),
        verdict=f'<p class="verdict">{html.escape(verdict)}</p>' if verdict else "",
        parts=parts_html,
        facts="".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items()),
        scripts=_scripts() if 'class="figure"' in parts_html else "",
    )


def table(
    head: Sequence[str], cells: Sequence[Sequence[str]], is_marked: Callable[[str], bool] = lambda _: False
) -> str:
    """Return a table; rows whose first cell is marked stand out. On a phone its first columns come first."""
    whole = f'<div class="wide">{_table(head, cells, is_marked)}</div>'
    if len(head) <= _KEY_COLUMNS:
        return whole
    short = _table(head[:_KEY_COLUMNS], [row[:_KEY_COLUMNS] for row in cells], is_marked)
    return (
        f'<div class="desk">{whole}</div>'
        f'<div class="phone">{short}<details><summary>all {len(head)} columns</summary>{whole}</details></div>'
    )


def _table(head: Sequence[str], cells: Sequence[Sequence[str]], is_marked: Callable[[str], bool]) -> str:
    def row(values: Sequence[str]) -> str:
        kind = ' class="ours"' if is_marked(values[0]) else ""
        return f"<tr{kind}>" + "".join(f"<td>{html.escape(v)}</td>" for v in values) + "</tr>"

    heads = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(row, cells))}</tbody></table>"


def plot(figure: Any) -> str:
    """Return a plotly figure as a part of a page: its title as text, then its place and its data."""
    title = figure.layout.title.text or ""
    figure.update_layout(title=None)
    data = figure.to_json().replace("</", "<\\/")
    return (
        f'<h3>{html.escape(title)}</h3><div class="figure"></div>'
        f'<script type="application/json" class="data">{data}</script>'
    )


def require_plotly() -> None:
    """Raise RuntimeError if plotly is missing, before anything is computed for a page."""
    if find_spec("plotly") is None:
        raise RuntimeError("a page needs plotly, which is missing: pip install 'pliant[plot]'.")


def write_figure(path: Path, title: str, figure: Any) -> None:
    """Write a page with one plot."""
    write_atomically(path, document(title, {}, [plot(figure)]))


def layout(title: str, x_title: str, y_title: str) -> dict[str, Any]:
    """Return what all plots have in common. The legend stands below, where it covers nothing."""
    axis = {"gridcolor": "#e8ecf0", "zerolinecolor": "#c9d1d9", "automargin": True}
    return {
        "title": {"text": title},
        "template": "plotly_white",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1d2733"},
        "height": 500,
        "xaxis": {"title": {"text": x_title}, **axis},
        "yaxis": {"title": {"text": y_title}, **axis},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "margin": {"l": 20, "r": 30, "t": 30, "b": 50},
    }


def _scripts() -> str:
    """Return plotly.js (its basic bundle, MIT licence), compressed, and what draws with it."""
    packed = base64.b64encode(_resource("plotly-basic.min.js.gz")).decode()
    drawing = _resource("page.js").decode()
    return f'<script type="application/gzip" id="plotly">{packed}</script>\n<script>\n{drawing}</script>'


def _resource(name: str) -> bytes:
    return files("pliant.cli").joinpath(name).read_bytes()
