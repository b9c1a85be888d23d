"""The border at which `torch.compile` stops: what ranks say to each other runs as it is, between two graphs."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["as_it_is"]

F = TypeVar("F", bound=Callable[..., Any])


def as_it_is(method: F) -> F:
    """Return a method that is never compiled, nor what it calls: a graph ends before it, and another begins after."""
    why = "ShardedEmbeddingBag exchanges rows between ranks; compile without fullgraph=True, or only the dense part."
    disable: Any = torch.compiler.disable
    return disable(method, reason=why)
