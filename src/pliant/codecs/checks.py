"""Checks of the tensors that every codec takes, each with one sentence."""

import torch
from torch import Tensor

from pliant.codecs.base import Codec
from pliant.spec import CodecSpec

__all__ = ["check_decode", "check_encode", "check_settings", "fold_seed"]

_MOST = (1 << 31) - 1


def check_encode(name: str, x: Tensor, payload: Tensor, nbytes: int, residual: Tensor | None = None) -> None:
    """Raise TypeError or ValueError unless x is a float32 vector, payload has exactly the bytes it needs, and a
    residual is like x.
    """
    _check(name, x, payload, nbytes)
    if residual is None:
        return
    if residual.dtype != x.dtype or residual.shape != x.shape or residual.device != x.device:
        raise ValueError(
            f"{name} got x {x.dtype} {tuple(x.shape)} on {x.device} but a residual {residual.dtype} "
            f"{tuple(residual.shape)} on {residual.device}; make the residual with torch.zeros_like(x)."
        )
    if not residual.is_contiguous():
        raise ValueError(f"{name} needs a contiguous residual beside its contiguous x; make it with torch.zeros_like.")


def check_decode(name: str, payload: Tensor, out: Tensor, nbytes: int) -> None:
    """Raise TypeError or ValueError unless payload has exactly the bytes of out, a float32 vector."""
    _check(name, out, payload, nbytes)


def _check(name: str, x: Tensor, payload: Tensor, nbytes: int) -> None:
    if x.dtype != torch.float32 or payload.dtype != torch.uint8:
        raise TypeError(f"{name} codes float32 as uint8, but got {x.dtype} and {payload.dtype}; convert with .float().")
    if x.device != payload.device:
        raise ValueError(f"{name} got a vector on {x.device} and a payload on {payload.device}; move one of them.")
    if x.dim() != 1 or not x.is_contiguous() or not payload.is_contiguous():
        raise ValueError(f"{name} needs contiguous vectors, but got a tensor of shape {tuple(x.shape)}; flatten it.")
    if x.numel() > _MOST:
        raise ValueError(f"{name} counts up to {_MOST} elements in 32 bits, but got {x.numel()}; use smaller buckets.")
    if payload.numel() != nbytes:
        raise ValueError(f"{name} codes {x.numel()} elements in {nbytes} bytes, but the payload has {payload.numel()}.")


def check_settings(codec: Codec) -> None:
    """Raise ValueError for a setting out of the range in the codec's row, as in a plan."""
    CodecSpec(name=codec.name, settings=vars(codec))


def fold_seed(seed: int) -> int:
    """Return 32 well-mixed bits of a seed of any size."""
    seed ^= seed >> 32
    seed = (seed ^ (seed >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    seed = (seed ^ (seed >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return seed ^ (seed >> 16)
