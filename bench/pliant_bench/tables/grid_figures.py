"""The plots of a grid: where the lines of two arms cross, another one is the best. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from plotly import graph_objects as go

from pliant.cli.page import layout
from pliant.spec.units import parse_rate
from pliant_bench.tables.figures import COLOURS
from pliant_bench.tables.winners import CellRow, is_ours

__all__ = ["grid_figures"]


def grid_figures(rows: Sequence[CellRow]) -> list[Any]:
    """Return, for each model, delay and speed of the last host, step time and time to the target over the rate."""
    figures: list[Any] = []
    limited = [row for row in rows if row.rate != "none"]
    for model, delay, slow in dict.fromkeys((row.model, row.delay, row.slow_share) for row in limited):
        own = [row for row in limited if (row.model, row.delay, row.slow_share) == (model, delay, slow)]
        where = f"{model}, {delay} of delay" + (f", the last host at {slow:g} of the others' speed" if slow else "")
        figures.append(_lines(own, [row.step_s for row in own], f"Step time: {where}", "ms a step", 1e3))
        if any(row.to_target_s for row in own):
            title = f"Time to the target: {where}"
            figures.append(_lines(own, [row.to_target_s for row in own], title, "seconds", 1.0))
    return figures


def _lines(
    rows: Sequence[CellRow], values: Sequence[Mapping[str, float]], title: str, y_title: str, scale: float
) -> Any:
    figure = go.Figure()
    arms = list(dict.fromkeys(arm for row in rows for arm in row.step_s))
    for number, arm in enumerate(arms):
        points = sorted(
            (parse_rate(r.rate) * 8e-6, scale * v[arm]) for r, v in zip(rows, values, strict=True) if arm in v
        )
        if not points:
            continue
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines+markers",
            name=arm,
            line={"color": COLOURS[number % len(COLOURS)], "dash": "solid" if is_ours(arm) else "dot", "width": 2},
            marker={"size": 6},
            hovertemplate="%{y:.3g} at %{x:g} Mbit/s<extra>" + arm + "</extra>",
        )
    figure.update_layout(layout(title, "rate of each host's link, Mbit/s, log scale", f"{y_title}, log scale"))
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick="D2")
    return figure
