"""Nodes inside nodes, changed."""

from collections.abc import Callable
from dataclasses import fields, replace

from pliant.spec.exchange import Exchange

__all__ = ["with_children"]


def with_children(node: Exchange, change: Callable[[Exchange], Exchange]) -> Exchange:
    """Return a node with what each node directly inside it becomes."""
    inside = ((own.name, getattr(node, own.name)) for own in fields(node))
    changed = {name: change(value) for name, value in inside if isinstance(value, Exchange)}
    return replace(node, **changed) if changed else node
