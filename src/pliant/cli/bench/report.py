"""One self-contained HTML page from a benchmark's JSON, plots included. Pure: no torch, no network."""

import html
from collections.abc import Sequence
from typing import Any

from pliant.cli.bench.results import TimeRow, TrainRow, time_rows, train_rows
from pliant.spec.units import format_bytes, format_time

__all__ = ["page", "time_table", "train_table"]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:1080px;margin:2.5rem auto;padding:0 1.2rem;color:#1d2733}
h1{font-size:1.7rem;margin-bottom:.2rem} h2{margin-top:2.4rem;font-size:1.2rem} .note{color:#5a6875}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th{text-align:right;border-bottom:2px solid #1d2733;padding:.35rem .6rem;font-weight:600}
td{text-align:right;border-bottom:1px solid #e2e7ec;padding:.35rem .6rem}
th:first-child,td:first-child{text-align:left} tr.ours td:first-child{font-weight:600;color:#0b6e4f}
code{background:#f2f5f7;padding:.1rem .35rem;border-radius:.25rem}
"""
_OURS, _THEIRS = "#0b6e4f", "#9aa5b1"
_COLOURS = (
    "#0b6e4f",
    "#d1495b",
    "#2e86ab",
    "#e8a33d",
    "#6b4e9b",
    "#3fa7a0",
    "#8c564b",
    "#c06fa4",
    "#587b1f",
    "#34495e",
)


def _is_ours(arm: str) -> bool:
    return arm != "compute" and not arm.startswith("ddp")


def _number(value: float | None, pattern: str = "{:.2f}") -> str:
    return "-" if value is None else pattern.format(value)


def _range(value: float | None, both: tuple[float, float] | None) -> str:
    return "-" if value is None or both is None else f"{value:.2f}x ({both[0]:.2f}-{both[1]:.2f})"


def _bytes(value: float | None, *, counted: bool) -> str:
    return "-" if value is None else format_bytes(value) + ("" if counted else " *")


def train_table(rows: Sequence[TrainRow], target: float) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the comparison by training."""
    head = [
        "arm",
        f"time to {target:.0%}",
        "step",
        "sent a step",
        "on the wire",
        "final accuracy",
        "vs bf16",
        "exposed",
    ]
    cells = [
        [
            r.arm,
            "not reached" if r.time_to_target_s is None else f"{r.time_to_target_s:.1f} s",
            format_time(r.step_s),
            _bytes(r.sent_bytes, counted=r.counted),
            format_bytes(r.wire_bytes),
            f"{r.final_accuracy:.2%}",
            "-" if r.gap is None else f"{r.gap:+.2f}",
            "-" if r.exposed_s is None else format_time(r.exposed_s) + (" *" if r.exposed_estimated else ""),
        ]
        for r in rows
    ]
    return head, cells


def time_table(rows: Sequence[TimeRow]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the comparison of step times."""
    head = [
        "model",
        "arm",
        "step",
        "faster than DDP",
        "over compute only",
        "sent a step",
        "on the wire",
        "exposed",
        "of bound",
    ]
    cells = [
        [
            r.model,
            r.arm,
            format_time(r.step_s),
            _range(r.speedup, r.speedup_spread),
            _range(r.over_compute, r.over_compute_spread),
            _bytes(r.sent_bytes, counted=r.counted),
            format_bytes(r.wire_bytes),
            "-" if r.exposed_s is None else format_time(r.exposed_s),
            _number(r.efficiency, "{:.0%}"),
        ]
        for r in rows
    ]
    return head, cells


def page(result: dict[str, Any]) -> str:
    """Return the page of a result that `pliant bench --json` has written."""
    setup, records = result["setup"], result["records"]
    parts: list[str] = []
    trained, timed = train_rows(records), time_rows(records, setup["rate_bytes_per_s"])
    if trained:
        head, cells = train_table(trained, setup["target_accuracy"])
        parts += ["<h2>Training to an accuracy</h2>", _html_table(head, cells, 0)]
        parts += [_plot(figure) for figure in _train_figures(records, trained, setup["target_accuracy"])]
    if timed:
        head, cells = time_table(timed)
        parts += ["<h2>Step times</h2>", _html_table(head, cells, 1)]
        parts += [
            _plot(_step_figure([r for r in timed if r.model == m], m)) for m in dict.fromkeys(r.model for r in timed)
        ]
        parts.append(
            '<p class="note">Data are made up for step times. Ratios: median of paired rounds (quartiles).</p>'
        )
    parts.append('<p class="note">* by formula or difference, not counted by the run itself.</p>')
    facts = "".join(f"<li>{html.escape(k)}: <code>{html.escape(v)}</code></li>" for k, v in setup["provenance"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Pliant bench</title>'
        f"<style>{_STYLE}</style><script>{_plotly_source()}</script></head><body><h1>Pliant bench</h1>"
        f'<ul class="note">{facts}</ul>{"".join(parts)}</body></html>'
    )


def _html_table(head: Sequence[str], cells: Sequence[Sequence[str]], name_column: int) -> str:
    def row(values: Sequence[str]) -> str:
        kind = ' class="ours"' if _is_ours(values[name_column]) else ""
        return f"<tr{kind}>" + "".join(f"<td>{html.escape(v)}</td>" for v in values) + "</tr>"

    return (
        f"<table><thead><tr>{''.join(f'<th>{html.escape(h)}</th>' for h in head)}</tr></thead>"
        f"<tbody>{''.join(map(row, cells))}</tbody></table>"
    )


def _plotly_source() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _plot(figure: Any) -> str:
    return figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})


def _layout(title: str, x: str, y: str) -> dict[str, Any]:
    axis = {"gridcolor": "#e8ecf0", "zerolinecolor": "#c9d1d9"}
    return {
        "title": {"text": title, "font": {"size": 17}},
        "template": "plotly_white",
        "height": 460,
        "xaxis": {"title": {"text": x}, **axis},
        "yaxis": {"title": {"text": y}, **axis},
        "legend": {"font": {"size": 13}},
        "margin": {"l": 70, "r": 20, "t": 60, "b": 60},
    }


def _train_figures(records: Sequence[dict[str, Any]], rows: Sequence[TrainRow], target: float) -> list[Any]:
    from plotly import graph_objects as go

    over_time, over_bytes = go.Figure(), go.Figure()
    runs = [r for r in records if r["kind"] == "train"]
    arms = list(dict.fromkeys(r["arm"] for r in runs))
    for r in runs:
        first = r["seed"] == next(q["seed"] for q in runs if q["arm"] == r["arm"])
        style = {
            "mode": "lines+markers",
            "name": r["arm"],
            "legendgroup": r["arm"],
            "showlegend": first,
            "line": {
                "color": _COLOURS[arms.index(r["arm"]) % len(_COLOURS)],
                "dash": "solid" if _is_ours(r["arm"]) else "dot",
                "width": 2,
            },
            "marker": {"size": 5},
        }
        accuracies = [100 * p["accuracy"] for p in r["curve"]]
        over_time.add_scatter(x=[p["time_s"] for p in r["curve"]], y=accuracies, **style)
        over_bytes.add_scatter(x=[p["wire_bytes"] / 1e6 for p in r["curve"]], y=accuracies, **style)
    for figure in (over_time, over_bytes):
        figure.add_hline(y=100 * target, line={"color": "#5a6875", "dash": "dash", "width": 1})
        figure.update_yaxes(range=[60, 95])
    over_time.update_layout(_layout("Accuracy over training time", "seconds", "test accuracy, %"))
    over_bytes.update_layout(_layout("Accuracy over bytes that left a host", "MB, log scale", "test accuracy, %"))
    over_bytes.update_xaxes(type="log")
    bars = [(r.arm, r.step_s, r.exposed_s) for r in rows]
    return [over_time, over_bytes, _bars(bars, "Where a step's time goes")]


def _step_figure(rows: Sequence[TimeRow], model: str) -> Any:
    return _bars([(r.arm, r.step_s, r.exposed_s) for r in rows], f"{model}: where a step's time goes")


def _bars(rows: Sequence[tuple[str, float, float | None]], title: str) -> Any:
    from plotly import graph_objects as go

    arms = [arm for arm, _, _ in rows]
    exposed = [e or 0.0 for _, _, e in rows]
    rest = [max(0.0, step - e) for (_, step, _), e in zip(rows, exposed, strict=True)]
    colours = [_OURS if _is_ours(arm) else _THEIRS for arm in arms]
    figure = go.Figure()
    figure.add_bar(x=arms, y=rest, name="compute, and what hides behind it", marker={"color": colours})
    figure.add_bar(x=arms, y=exposed, name="exposed communication", marker={"color": "#d1495b"})
    figure.update_layout(barmode="stack", **_layout(title, "", "seconds a step"))
    return figure
