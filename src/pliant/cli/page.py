"""Self-contained HTML pages: tables, and plots that need no network. No torch here."""

import html
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pliant.spec.files import write_atomically

__all__ = ["document", "layout", "plot", "require_plotly", "table", "write_figure"]

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


def document(title: str, facts: Mapping[str, str], parts: Sequence[str]) -> str:
    """Return a whole page: a title, what is known of how it came about, and parts that are HTML already."""
    known = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style><script>{_plotly_source()}</script></head><body><h1>{html.escape(title)}</h1>"
        f"<dl>{known}</dl>{''.join(parts)}</body></html>\n"
    )


def table(
    head: Sequence[str], cells: Sequence[Sequence[str]], is_marked: Callable[[str], bool] = lambda _: False
) -> str:
    """Return a table; rows whose first cell is marked stand out."""

    def row(values: Sequence[str]) -> str:
        kind = ' class="ours"' if is_marked(values[0]) else ""
        return f"<tr{kind}>" + "".join(f"<td>{html.escape(v)}</td>" for v in values) + "</tr>"

    heads = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join(map(row, cells))
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def plot(figure: Any) -> str:
    """Return a plotly figure as a part of a page."""
    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False})
    return f'<div class="plot">{drawn}</div>'


def require_plotly() -> None:
    """Raise RuntimeError if plotly is missing, before anything is computed for a page."""
    if find_spec("plotly") is None:
        raise RuntimeError("a page needs plotly, which is missing: pip install 'pliant[plot]'.")


def write_figure(path: Path, title: str, figure: Any) -> None:
    """Write a page with one plot."""
    write_atomically(path, document(title, {}, [plot(figure)]))


def layout(title: str, x_title: str, y_title: str) -> dict[str, Any]:
    """Return what all plots have in common."""
    axis = {"gridcolor": "#e8ecf0", "zerolinecolor": "#c9d1d9", "automargin": True}
    return {
        "title": {"text": title, "font": {"size": 17}, "x": 0, "xref": "paper", "yref": "container", "y": 0.97},
        "template": "plotly_white",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1d2733"},
        "height": 500,
        "xaxis": {"title": {"text": x_title}, **axis},
        "yaxis": {"title": {"text": y_title}, **axis},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "margin": {"l": 20, "r": 30, "t": 110, "b": 50},
    }


def _plotly_source() -> str:
    from plotly.offline import get_plotlyjs  # here, since it is an extra

    return get_plotlyjs()
