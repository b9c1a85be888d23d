"""Parts that pictures share: a self-contained SVG, and text in it."""

from collections.abc import Sequence
from html import escape

__all__ = ["svg", "svg_text"]


def svg(width: float, height: float, body: Sequence[str]) -> str:
    """Return an SVG of these pixels and elements, on white."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def svg_text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> str:
    """Return words at a place, in pixels."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#111827" text-anchor="{anchor}">{escape(words)}</text>'
    )
