"""A mistake in the inputs of one rank is raised on all, so that none waits for an answer that will not come."""

from collections.abc import Sequence

import torch

from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text

__all__ = ["BAD", "raise_everywhere"]

BAD = -1
"""A size that says: what this rank was given cannot be looked up; its error follows."""

_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (ValueError, IndexError, TypeError)}


def raise_everywhere(comm: Comm, error: Exception | None, bad: Sequence[int], device: torch.device) -> None:
    """Raise this rank's error, if it has one, otherwise that of the first of the ranks `bad`. Collective."""
    first = min(bad)
    kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "ValueError")
    kind, _, text = broadcast_text(f"{kind} {error}", comm, first, device=device).partition(" ")
    if error is not None:
        raise error
    raise _KINDS.get(kind, ValueError)(f"rank {first}: {text}")
