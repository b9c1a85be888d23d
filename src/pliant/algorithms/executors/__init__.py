"""A node of a plan to the algorithm that carries it out: each node says which, and its file is imported when needed."""

from importlib import import_module
from typing import Any, cast

from pliant.algorithms.base import Algorithm
from pliant.algorithms.registry import custom_algorithm
from pliant.codecs import codec_from
from pliant.spec import Custom, Exchange

__all__ = ["executor_for", "registered"]


def executor_for(node: Exchange) -> Algorithm:
    """Return the algorithm that carries out a node; ``executor_for(node).node == node``.

    Raises:
        ValueError: A setting of a codec is out of its range, or nobody has registered an algorithm that is not
            Pliant's; or what was registered is another one than the node names.
        TypeError: The node does not say what carries it out.

    """
    if node.payload_codec is not None:
        codec_from(node.payload_codec)
    module, _, name = node.made_by.partition(":")
    if not name:
        raise TypeError(f"{type(node).__name__} does not say what carries it out; set its `made_by`.")
    make: Any = getattr(import_module(f"pliant.algorithms.{module}"), name)
    made: Algorithm = make(node, *map(executor_for, node.children))
    if made.node != node:
        raise ValueError(
            f"{node} is meant, but what is registered under its name carries out {made.node}; an algorithm of your own "
            "must be a frozen dataclass, and name all its settings in its node."
        )
    return made


def registered(node: Custom) -> Algorithm:
    """Return the algorithm that was registered under a node's name, or the executor of the node that it is."""
    made = custom_algorithm(node)
    return executor_for(made) if isinstance(made, Exchange) else cast(Algorithm, made)
