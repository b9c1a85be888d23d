"""A schedule as a picture: ranks as lines, rounds from left to right, messages as arrows."""

from typing import Any

from pliant.cli.page import layout
from pliant.schedules import Candidate
from pliant.spec import Topology
from pliant.spec.units import format_bytes, format_time

__all__ = ["schedule_figure"]

_COLORS = {"partial sums": "#0f766e", "complete sums": "#c2410c", "both": "#6d28d9"}


def schedule_figure(candidate: Candidate, topology: Topology, bound_s: float) -> Any:
    """Return a plotly figure: arrows are as wide as messages are long, and tell partial from complete sums."""
    from plotly import graph_objects as go  # here, since it is an extra

    schedule, sizes, total_s = candidate.schedule, candidate.merged.collective.block_bytes, candidate.cost.total_s
    messages = [
        (k, source, target, sum(sizes[b] for b in (*reduced, *copied)), _kind(bool(reduced), bool(copied)))
        for k in range(len(schedule.rounds))
        for (source, target), (reduced, copied) in schedule.messages(k).items()
    ]
    largest = max((num_bytes for *_, num_bytes, _ in messages), default=1) or 1
    figure: Any = go.Figure()
    for kind, color in _COLORS.items():
        own = [each for each in messages if each[-1] == kind]
        figure.add_scatter(
            x=[k + 0.5 for k, *_ in own] or [None],  # the legend names all kinds
            y=[(source + target) / 2 for _, source, target, *_ in own] or [None],
            name=kind,
            mode="markers",
            marker_color=color,
            text=[f"rank {source} to rank {target}: {format_bytes(n)} of {kind}" for _, source, target, n, _ in own],
            hovertemplate="%{text}<extra></extra>",
        )
    for k, source, target, num_bytes, kind in messages:
        figure.add_annotation(
            ax=k + 0.05,
            ay=source,
            x=k + 0.95,
            y=target,
            axref="x",
            ayref="y",
            text="",
            arrowcolor=_COLORS[kind],
            arrowwidth=1 + 3 * num_bytes / largest,
            arrowhead=2,
            opacity=0.75,
        )
    over = f", {total_s / bound_s:.2f} times the lower bound of {format_time(bound_s)}" if bound_s > 0 else ""
    figure.update_layout(layout(f"{candidate.name}: predicted {format_time(total_s)}{over}", "", ""))
    rounds = [f"round {k + 1}: {format_time(each.total_s)}" for k, each in enumerate(candidate.cost.rounds)]
    ranks = [f"{host.name} rank {rank}" for k, host in enumerate(topology.hosts) for rank in topology.ranks_of(k)]
    figure.update_xaxes(tickvals=[k + 0.5 for k in range(len(rounds))], ticktext=rounds, range=[0, len(rounds)])
    figure.update_yaxes(tickvals=list(range(len(ranks))), ticktext=ranks, range=[len(ranks) - 0.5, -0.5])
    for k in range(0, len(topology.hosts), 2):
        of_host = topology.ranks_of(k)
        figure.add_hrect(of_host.start - 0.5, of_host.stop - 0.5, fillcolor="#e5e7eb", line_width=0, layer="below")
    return figure


def _kind(reduces: bool, copies: bool) -> str:
    return "both" if reduces and copies else "partial sums" if reduces else "complete sums"
