"""Throughput against memory as a picture: SVG, or a page around it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pliant.cli.svg import svg, svg_text
from pliant.spec.files import write_atomically
from pliant.spec.units import format_bytes

__all__ = ["KINDS", "curve_svg", "draw_curve"]

KINDS = (".svg", ".html")

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 420, 90, 50, 30, 60
"""Pixels: of the picture, and beside the plot."""
_GRID, _LINE = "#e5e7eb", "#0f766e"

Point = tuple[float, float | None]


def draw_curve(path: Path, title: str, points: Sequence[Point], chosen: tuple[float, float]) -> None:
    """Write the plot, in the format that the file's name asks for.

    Args:
        path: Ends in one of KINDS.
        title: Above the plot.
        points: Memory of a rank in bytes, in rising order, and samples per second; None where nothing fits.
        chosen: The point of the placement.

    Raises:
        ValueError: The file's name asks for something else.

    """
    if path.suffix not in KINDS:
        raise ValueError(f"{path} is to be a plot, but plots are {', '.join(KINDS)}; name it so.")
    picture = curve_svg(title, points, chosen)
    if path.suffix == ".html":
        picture = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>'
            f"<body>{picture}</body></html>\n"
        )
    write_atomically(path, picture)


def curve_svg(title: str, points: Sequence[Point], chosen: tuple[float, float]) -> str:
    """Return a self-contained SVG; see `draw_curve`."""
    fits = [(x, y) for x, y in points if y is not None]
    most_x, most_y = max(x for x, _ in [*points, chosen]), 1.08 * max(y for _, y in [*fits, chosen])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (_WIDTH - _LEFT - _RIGHT) * x / most_x
        up = (_HEIGHT - _TOP - _BOTTOM) * y / most_y
        return _LEFT + across, _HEIGHT - _BOTTOM - up

    body = [svg_text(_LEFT, 26, title, size=15)]
    for k in range(5):
        x, y = at(most_x * k / 4, most_y * k / 4)
        body.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        body.append(svg_text(_LEFT - 8, y + 4, f"{most_y * k / 4:,.0f}", anchor="end"))
        body.append(svg_text(x, _HEIGHT - _BOTTOM + 20, format_bytes(most_x * k / 4), anchor="middle"))
    body.append(svg_text(_WIDTH / 2, _HEIGHT - 12, "memory of each rank", anchor="middle"))
    body.append(svg_text(12, _TOP - 10, "samples/s"))
    short = [x for x, y in points if y is None]
    if short:
        right = at(max(short), 0)[0]
        body.append(
            f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}" '
            'fill="#fee2e2"><title>nothing fits</title></rect>'
        )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in fits))
    body.append(f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="2.5"/>')
    for memory, speed in fits:
        x, y = at(memory, speed)
        said = f"{format_bytes(memory)}: {speed:,.0f} samples/s"
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_LINE}"><title>{said}</title></circle>')
    x, y = at(*chosen)
    body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="#c2410c" stroke-width="2.5"/>')
    return svg(_WIDTH, _HEIGHT, body)
