"""Throughput against memory as a plot."""

from collections.abc import Sequence
from typing import Any

from pliant.cli.page import layout
from pliant.spec.units import format_bytes

__all__ = ["curve_figure"]


def curve_figure(title: str, points: Sequence[tuple[float, float | None]], chosen: tuple[float, float]) -> Any:
    """Return the plot, as a plotly figure.

    Args:
        title: Above it.
        points: Memory of a rank in bytes, in rising order, and samples per second; None where nothing fits.
        chosen: The point of the placement.

    """
    from plotly import graph_objects as go  # here, since it is an extra

    fits = [(x, y) for x, y in points if y is not None]
    figure: Any = go.Figure()
    for name, some, style in (
        ("best placements", fits, {"mode": "lines+markers", "line_color": "#0b6e4f"}),
        ("the limit given", [chosen], {"mode": "markers", "marker": {"size": 14, "symbol": "circle-open"}}),
    ):
        figure.add_scatter(
            x=[1e-9 * x for x, _ in some],
            y=[y for _, y in some],
            name=name,
            text=[f"{format_bytes(x)}: {y:,.0f} samples/s" for x, y in some],
            hovertemplate="%{text}<extra></extra>",
            **style,
        )
    if short := [x for x, y in points if y is None]:
        figure.add_vrect(x0=0, x1=1e-9 * max(short), fillcolor="#fee2e2", line_width=0, annotation_text="nothing fits")
    figure.update_layout(layout(title, "memory of each rank, GB", "samples/s"))
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    return figure
