"""The plots of a benchmark, as plotly figures. Pure."""

import functools
import math
from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go

from pliant.cli.page import layout
from pliant_bench.harness.metric import Metric
from pliant_bench.tables.results import TimeRow, TrainRow
from pliant_bench.tables.winners import is_ours

__all__ = ["COLOURS", "step_figures", "train_figures"]

_EXPOSED = "#d1495b"
_OURS, _THEIRS = "#0b6e4f", "#9aa5b1"
COLOURS = (
    "#4a5560", "#8a97a5", "#b08d57", "#0b6e4f", "#2e86ab", "#d1495b", "#e8a33d", "#6b4e9b", "#3fa7a0", "#c06fa4",
    "#587b1f", "#8c564b", "#1f4e9c", "#b5651d", "#7a1f3d",
)  # fmt: skip
"""Of arms, in their order."""


def train_figures(
    records: Sequence[dict[str, Any]], rows: Sequence[TrainRow], target: float, metric: Metric
) -> list[Any]:
    """Return accuracy or what takes its place over time, over bytes if known, and where a step's time goes."""
    runs = [r for r in records if r["kind"] == "train"]
    noun = metric.name.capitalize()
    draw = functools.partial(_curves, runs, target=target, metric=metric)
    figures = [draw(f"{noun} over training time", "seconds of training, log scale", x_key="time_s", x_scale=1.0)]
    if all(r["wire_bytes"] is not None for r in runs):
        title = f"{noun} over bytes that left the busiest host"
        figures.append(draw(title, "MB, log scale", x_key="wire_bytes", x_scale=1e-6))
    return [*figures, _bars([(r.arm, r.step_s, r.exposed_s) for r in rows], "Where a step's time goes")]


def step_figures(rows: Sequence[TimeRow]) -> list[Any]:
    """Return one figure per model: where a step's time goes."""
    models = dict.fromkeys(r.model for r in rows)
    return [
        _bars([(r.arm, r.step_s, r.exposed_s) for r in rows if r.model == model], f"{model}: where a step's time goes")
        for model in models
    ]


def _curves(
    runs: Sequence[dict[str, Any]],
    title: str,
    x_title: str,
    *,
    target: float,
    metric: Metric,
    x_key: str,
    x_scale: float,
) -> Any:
    figure = go.Figure()
    arms = list(dict.fromkeys(r["arm"] for r in runs))
    shown: set[str] = set()
    for r in runs:
        arm = r["arm"]
        figure.add_scatter(
            x=[p[x_key] * x_scale for p in r["curve"]],
            y=[metric.drawn(p[metric.name]) for p in r["curve"]],
            mode="lines+markers",
            name=arm,
            legendgroup=arm,
            showlegend=arm not in shown,
            line={
                "color": COLOURS[arms.index(arm) % len(COLOURS)],
                "dash": "solid" if is_ours(arm) else "dot",
                "width": 2,
            },
            marker={"size": 5},
            hovertemplate="%{y:.3g} after %{x:.3g}<extra>" + arm + "</extra>",
        )
        shown.add(arm)
    goal, note = metric.drawn(target), f"target {metric.drawn(target):g}"
    figure.add_hline(y=goal, line={"color": "#5a6875", "dash": "dash", "width": 1}, annotation_text=note)
    figure.update_layout(layout(title, x_title, metric.axis))
    figure.update_xaxes(type="log", **_log_ticks([p[x_key] * x_scale for r in runs for p in r["curve"]]))
    points = [metric.drawn(p[metric.name]) for r in runs for p in r["curve"]]
    if metric.higher:
        figure.update_yaxes(range=[max(0.0, min(max(points) - 30.0, goal - 10)), min(100.0, max(points) + 3)])
    else:
        figure.update_yaxes(range=[min(*points, goal) * 0.95, max(goal, min(points)) * 1.6])
    return figure


def _log_ticks(values: Sequence[float]) -> dict[str, Any]:
    """Return ticks at 1, 2, 5, 10 ... with whole numbers: plotly writes 20 and 50 as a small 2 and 5."""
    low, high = min(v for v in values if v > 0), max(values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5) if low / 2 <= m * 10.0**e <= high * 2]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _bars(rows: Sequence[tuple[str, float, float | None]], title: str) -> Any:
    """Return lying bars, the first arm on top, each in two parts with its whole written at the end."""
    arms = [arm for arm, _, _ in rows][::-1]
    steps = [1e3 * step for _, step, _ in rows][::-1]
    exposed = [min(1e3 * (e or 0.0), 1e3 * s) for _, s, e in rows][::-1]
    rest = [s - e for s, e in zip(steps, exposed, strict=True)]
    figure = go.Figure()
    colours = [_OURS if is_ours(arm) else _THEIRS for arm in arms]
    figure.add_bar(y=arms, x=rest, orientation="h", name="computing, and what hides behind it", marker_color=colours)
    figure.add_bar(
        y=arms,
        x=exposed,
        orientation="h",
        name="exposed communication",
        marker_color=_EXPOSED,
        text=[f"{s:.0f} ms" for s in steps],
        textposition="outside",
        cliponaxis=False,
    )
    figure.update_layout(layout(title, "ms a step", ""))
    figure.update_layout(barmode="stack", bargap=0.3, height=150 + 34 * len(rows), xaxis_range=[0, 1.12 * max(steps)])
    return figure
