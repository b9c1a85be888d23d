"""The plots of a report, as plotly figures. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from pliant.cli.page import layout
from pliant.cli.report.comparison import Measured, predicted_value
from pliant.cli.report.steps import BucketTimes
from pliant.simulator import Simulated
from pliant.spec import Event
from pliant.spec.units import format_bytes, format_time

__all__ = ["COLOURS", "bucket_figure", "bytes_figure", "timeline_figure", "steps_figure"]

_TRACKS: Mapping[str, str] = MappingProxyType(
    {
        "forward": "compute",
        "backward": "compute",
        "optimize": "compute",
        "wait": "compute",
        "exchange": "exchange",
        "encode": "encode",
        "communicate": "network",
        "decode": "decode",
    }
)
_ORDER = ("decode", "network", "encode", "exchange", "compute")
"""From the bottom."""
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "forward": "#8fb8de",
        "backward": "#2e6f9e",
        "optimize": "#4a5560",
        "wait": "#d1495b",
        "exchange": "#b9c4cf",
        "encode": "#e8a33d",
        "communicate": "#0b6e4f",
        "decode": "#6b4e9b",
    }
)
"""Kind of event -> its colour in every drawing."""
_PREDICTED = "#9aa5b1"
_RANKS = ("#0b6e4f", "#2e86ab", "#b08d57", "#6b4e9b", "#3fa7a0", "#c06fa4", "#587b1f", "#8c564b")
_MOST_NUMBERS = 20
"""Steps that are few enough for each to have its number."""


def timeline_figure(title: str, panels: Sequence[tuple[str, Sequence[Event]]]) -> Any:
    """Return panels one above the other, on one scale of time: what was computed, exchanged, coded and sent, when."""
    figure: Any = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        subplot_titles=[name for name, _ in panels],
        vertical_spacing=0.3 / (len(panels) + 1),
    )
    named: set[str] = set()
    for row, (_, events) in enumerate(panels, start=1):
        for kind, lane in _TRACKS.items():
            own = [event for event in events if event.kind == kind]
            if not own:
                continue
            figure.add_bar(
                y=[lane] * len(own),
                x=[1e3 * (event.end_s - event.start_s) for event in own],
                base=[1e3 * event.start_s for event in own],
                orientation="h",
                name=kind,
                legendgroup=kind,
                showlegend=kind not in named,
                opacity=0.75 if kind in ("exchange", "communicate") else 1.0,
                marker={"color": COLOURS[kind], "line": {"width": 0.6, "color": "#ffffff"}},
                customdata=[_hover_text(event) for event in own],
                hovertemplate="%{customdata}<extra></extra>",
                row=row,
                col=1,
            )
            named.add(kind)
    height = 210 + 175 * len(panels)
    figure.update_layout(layout(title, "", ""), barmode="overlay", bargap=0.25, height=height)
    figure.update_layout(margin_t=130, legend_y=1 + 28 / (height - 180))  # above the name of the first panel
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    figure.update_yaxes(categoryorder="array", categoryarray=_ORDER)
    figure.update_xaxes(gridcolor="#e8ecf0", rangemode="tozero")
    figure.update_xaxes(title_text="ms from the start of the step", row=len(panels), col=1)
    return figure


def _hover_text(event: Event) -> str:
    what = event.kind if event.kind == event.name else f"{event.kind} {event.name}"
    sent = f", {format_bytes(event.sent_bytes)} sent" if event.sent_bytes else ""
    return f"{what}: {format_time(event.end_s - event.start_s)} of step {event.step}{sent}"


def steps_figure(measured: Measured, predicted: Simulated | None) -> Any:
    """Return the time of each step, in two parts, as a mean over ranks."""
    numbers = [step.step for step in measured.steps[0]]
    num_ranks = len(measured.steps)
    figure = go.Figure()
    for name, key, colour in (
        ("computing, and what hides behind it", "compute_s", COLOURS["backward"]),
        ("exposed communication", "exposed_s", COLOURS["wait"]),
    ):
        means_ms = [1e3 * sum(getattr(s, key) for s in same) / num_ranks for same in zip(*measured.steps, strict=True)]
        figure.add_bar(x=numbers, y=means_ms, name=name, marker_color=colour)
    if predicted is not None:
        _line(figure, 1e3 * predicted.step_s, f"predicted: {format_time(predicted.step_s)}")
    figure.update_layout(layout("Time of each step, mean over ranks", "step", "ms"), barmode="stack", height=380)
    _number(figure, len(numbers))
    return figure


def bytes_figure(measured: Measured, predicted: Simulated | None) -> Any:
    """Return the bytes that each rank has sent in each step."""
    figure = go.Figure()
    for number, steps in enumerate(measured.steps):
        figure.add_bar(
            x=[step.step for step in steps],
            y=[1e-6 * step.sent_bytes for step in steps],
            name=f"rank {steps[0].rank}",
            marker_color=_RANKS[number % len(_RANKS)],
        )
    if predicted is not None:
        sent = predicted_value(predicted, "sent_bytes", measured.ranks)
        _line(figure, 1e-6 * sent, f"predicted, the busiest rank: {format_bytes(sent)}")
    figure.update_layout(layout("Bytes sent in each step", "step", "MB"), barmode="group", height=380)
    _number(figure, len(measured.steps[0]))
    return figure


def bucket_figure(measured: Sequence[BucketTimes], predicted: Sequence[BucketTimes] | None) -> Any:
    """Return the exposed time of each bucket's exchange, and if there is a prediction, beside it."""
    figure = go.Figure()
    for name, buckets, colour in (
        ("measured", measured, COLOURS["wait"]),
        ("predicted", predicted or (), _PREDICTED),
    ):
        if buckets:
            figure.add_bar(
                x=[bucket.name for bucket in buckets],
                y=[1e3 * bucket.exposed_s for bucket in buckets],
                name=name,
                marker_color=colour,
            )
    title = "Exposed communication of each bucket, a step"
    figure.update_layout(layout(title, "", "ms"), barmode="group", height=360, showlegend=bool(predicted))
    return figure


def _line(figure: Any, y: float, note: str) -> None:
    line = {"color": "#1d2733", "dash": "dash", "width": 1.5}
    figure.add_hline(y=y, line=line, annotation_text=note, annotation_position="top right")


def _number(figure: Any, num_steps: int) -> None:
    if num_steps <= _MOST_NUMBERS:
        figure.update_xaxes(dtick=1)
