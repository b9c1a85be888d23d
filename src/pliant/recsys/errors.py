"""A mistake in the inputs of one rank is raised on all, so that none waits for an answer that will not come."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.recsys.exchange import Talk

__all__ = ["BAD", "raise_everywhere"]

BAD = -1
"""A size that says: what this rank was given cannot be looked up; a sentence follows."""

_SENTENCE_BYTES = 1024
_KINDS: tuple[type[Exception], ...] = (ValueError, IndexError, TypeError)


def raise_everywhere(talk: Talk, error: Exception | None, bad: Sequence[int], device: torch.device) -> None:
    """Tell the other ranks of this rank's error, if it has one, hear theirs, and raise the first.

    Called by every rank when the sizes of ranks `bad` were BAD.
    """
    rank, size = talk.comm.rank, talk.comm.size
    own = _written(error, device) if error is not None else None
    came = {peer: torch.empty(_SENTENCE_BYTES, dtype=torch.uint8, device=device) for peer in bad if peer != rank}
    talk.swap(
        "errors",
        [[own] if own is not None and peer != rank else [] for peer in range(size)],
        [[came[peer]] if peer in came else [] for peer in range(size)],
    ).wait()
    if error is not None:
        raise error
    peer = min(bad)
    kind, text = _read(came[peer])
    raise kind(f"rank {peer}: {text}")


def _written(error: Exception, device: torch.device) -> Tensor:
    kind = next((k for k, known in enumerate(_KINDS) if isinstance(error, known)), 0)
    text = str(error).encode()[: _SENTENCE_BYTES - 1]
    return torch.tensor([kind, *text.ljust(_SENTENCE_BYTES - 1)], dtype=torch.uint8, device=device)


def _read(sentence: Tensor) -> tuple[type[Exception], str]:
    kind, *text = sentence.tolist()
    return _KINDS[min(kind, len(_KINDS) - 1)], bytes(text).decode(errors="replace").rstrip()
