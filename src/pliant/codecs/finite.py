"""Scans of a tensor: whether all of it is finite, its first NaN or Inf, and a fingerprint of its bytes."""

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs.kernels import kernels_for
from pliant.codecs.kernels.reference_scan import hash_there

__all__ = [
    "all_finite",
    "content_hash",
    "drop_nonfinite",
    "finite_flag",
    "first_nonfinite",
    "keep_unless",
    "nonfinite",
    "nonfinite_place",
    "scale_and_check",
    "tensor_hash",
]

_ROW, _SHORT_ROW = 1024, 256
"""Elements of which one number is kept in the search for a place; as few as the second, where then none are left."""
_PIECE = 1 << 24
"""Elements looked at in one go: for each of them torch makes five bytes on its way."""


def all_finite(x: Tensor) -> bool:
    """Say whether no element of x, any shape, is NaN or Inf. One read of memory for float32."""
    if x.dtype == torch.float32 and x.is_contiguous():
        return kernels_for(x).all_finite(x)
    pieces = x.view(-1).split(_PIECE) if x.is_contiguous() else (x,)
    return all(bool(piece.isfinite().all()) for piece in pieces)


def finite_flag(x: Tensor) -> Tensor:
    """Return whether no element of x, any shape, is NaN or Inf, as a bool tensor () that stays where x is.

    On an accelerator nobody waits for it: what depends on it is chosen there, by `torch.where`. It is one read of
    memory, and makes nothing of x's size: the largest |x| is finite if all are.
    """
    if not x.numel():
        return x.isfinite().all()
    norm = torch.linalg.vector_norm(x, torch.inf)
    return norm - norm == 0  # two launches, where `isfinite` takes four


def nonfinite(x: Tensor) -> bool | Tensor:
    """Return whether an element of x, any shape, is NaN or Inf; on an accelerator a flag, as `finite_flag` does."""
    return ~finite_flag(x) if is_accelerator(x.device) else not all_finite(x)


def nonfinite_place(x: Tensor) -> Tensor:
    """Return the index of the first NaN or Inf in x, (numel,), or -1, as int64 () that stays where x is.

    It is one read of memory, and few launches, since it is done for each bucket.
    """
    power = min(len(x) & -len(x), _ROW)  # of two, that divides the length
    length = power if power >= _SHORT_ROW else _ROW
    place, whole = torch.full((), -1, device=x.device), len(x) // length * length
    if whole < len(x):
        worst, at = _worst(x[whole:])
        place = torch.where(worst != 0, at + whole, place)
    if whole:
        rows = x[:whole].view(-1, length)
        worst, row = _worst(torch.linalg.vector_norm(rows, torch.inf, dim=1))
        _, column = _worst(rows.index_select(0, row.view(1)).view(-1))
        place = torch.where(worst != 0, torch.add(column, row, alpha=length), place)
    return place


def _worst(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return NaN and the index of the first NaN or Inf in x, (numel,), or 0 and any index if there is none."""
    return (x - x).max(0)  # NaN counts as the largest


def keep_unless(condition: Tensor, kept: Tensor, value: Tensor) -> None:
    """Let a tensor become a value of its shape if the condition, bool () on its device, holds; nobody waits for it."""
    torch.where(condition, value, kept, out=kept)


def drop_nonfinite(x: Tensor) -> None:
    """Set what is NaN or Inf in x, any shape, to 0, in place; on an accelerator nobody waits to know if anything is."""
    if is_accelerator(x.device) or not all_finite(x):
        x.nan_to_num_(0.0, 0.0, 0.0)


def first_nonfinite(x: Tensor) -> int:
    """Return the index of the first NaN or Inf in x, (numel,), or -1."""
    return -1 if all_finite(x) else int((~x.isfinite()).nonzero()[0])


def scale_and_check(x: Tensor, factor: float) -> bool:
    """Multiply x, any shape, in place; say whether all of it is finite. One pass over memory for float32."""
    if x.dtype == torch.float32 and x.is_contiguous():
        return kernels_for(x).scale(x, factor)
    return all_finite(x.mul_(factor))


def tensor_hash(x: Tensor) -> int:
    """Return a 64-bit hash of the elements' bytes, in the order of the logical index. Not cryptographic."""
    x = x.detach().contiguous()
    return kernels_for(x).hash_bytes(x)


def content_hash(x: Tensor) -> int | Tensor:
    """Return `tensor_hash`; on an accelerator its bits as int64 () that stays there, so that nobody waits for it."""
    return hash_there(x.detach()) if is_accelerator(x.device) else tensor_hash(x)
