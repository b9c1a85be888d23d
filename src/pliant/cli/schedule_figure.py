"""A schedule as a picture: ranks as lines, rounds from left to right, messages as arrows."""

from html import escape

from pliant.cli.svg import svg, svg_text
from pliant.schedules import Candidate
from pliant.spec import Topology
from pliant.spec.units import format_bytes, format_time

__all__ = ["schedule_figure"]

_COLUMN, _ROW, _LEFT, _TOP = 190, 34, 150, 70
"""Pixels: of a round, of a rank, and beside and above them."""
_COLORS = {"reduce": "#0f766e", "copy": "#c2410c", "both": "#6d28d9"}
_WORDS = {"reduce": "partial sums", "copy": "complete sums", "both": "both"}


def schedule_figure(candidate: Candidate, topology: Topology, bound_s: float) -> str:
    """Return a self-contained SVG: arrows are as wide as messages are long, and tell partial from complete sums."""
    schedule, sizes = candidate.schedule, candidate.merged.collective.block_bytes
    messages = [
        (k, source, target, sum(sizes[b] for b in (*reduced, *copied)), _kind(bool(reduced), bool(copied)))
        for k in range(len(schedule.rounds))
        for (source, target), (reduced, copied) in schedule.messages(k).items()
    ]
    largest = max((num_bytes for *_, num_bytes, _ in messages), default=1) or 1
    width = _LEFT + _COLUMN * max(1, len(schedule.rounds)) + 30
    height = _TOP + _ROW * schedule.num_ranks + 50
    total_s = candidate.cost.total_s
    over = f", {total_s / bound_s:.2f} times the lower bound of {format_time(bound_s)}" if bound_s > 0 else ""
    body = [
        *_markers(),
        svg_text(12, 24, f"{candidate.name}: predicted {format_time(total_s)}{over}", size=15),
        *_hosts(topology, width),
        *_rounds(candidate, height),
        *(_arrow(*message, largest) for message in messages),
        *_legend(height),
    ]
    return svg(width, height, body)


def _kind(reduces: bool, copies: bool) -> str:
    return "both" if reduces and copies else "reduce" if reduces else "copy"


def _y(rank: int) -> float:
    return _TOP + _ROW * (rank + 0.5)


def _markers() -> list[str]:
    return [
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="{color}"/></marker>'
        for kind, color in _COLORS.items()
    ]


def _hosts(topology: Topology, width: float) -> list[str]:
    """Return a band for each host, with a line and a name for each of its ranks."""
    found: list[str] = []
    for k, host in enumerate(topology.hosts):
        ranks = topology.ranks_of(k)
        shade = "#f3f4f6" if k % 2 == 0 else "#e5e7eb"
        top = _TOP + _ROW * ranks.start
        found.append(f'<rect x="0" y="{top}" width="{width}" height="{_ROW * len(ranks)}" fill="{shade}"/>')
        for rank in ranks:
            y = _y(rank)
            found.append(svg_text(12, y + 4, f"{host.name} rank {rank}"))
            found.append(f'<line x1="{_LEFT - 20}" y1="{y:g}" x2="{width - 10}" y2="{y:g}" stroke="#9ca3af"/>')
    return found


def _rounds(candidate: Candidate, height: float) -> list[str]:
    found: list[str] = []
    for k, each in enumerate(candidate.cost.rounds):
        x = _LEFT + _COLUMN * k
        found.append(
            f'<line x1="{x}" y1="{_TOP - 24}" x2="{x}" y2="{height - 45}" stroke="#6b7280" stroke-dasharray="3"/>'
        )
        found.append(svg_text(x + 6, _TOP - 10, f"round {k + 1}: {format_time(each.total_s)}"))
    return found


def _arrow(index: int, source: int, target: int, num_bytes: int, kind: str, largest: int) -> str:
    x = _LEFT + _COLUMN * index
    title = f"rank {source} to rank {target}: {format_bytes(num_bytes)} of {_WORDS[kind]}"
    return (
        f'<line x1="{x + 12}" y1="{_y(source):g}" x2="{x + _COLUMN - 12}" y2="{_y(target):g}" '
        f'stroke="{_COLORS[kind]}" stroke-width="{1 + 3 * num_bytes / largest:.2f}" stroke-opacity="0.75" '
        f'marker-end="url(#{kind})"><title>{escape(title)}</title></line>'
    )


def _legend(height: float) -> list[str]:
    found: list[str] = []
    for k, (kind, color) in enumerate(_COLORS.items()):
        x, y = 12 + 160 * k, height - 18
        found.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 28}" y2="{y - 4}" stroke="{color}" stroke-width="3"/>')
        found.append(svg_text(x + 34, y, _WORDS[kind]))
    return found
