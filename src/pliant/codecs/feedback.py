"""Error feedback, once, for every codec."""

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs.base import Codec, FusedFeedback, FusedOwner
from pliant.codecs.checks import check_encode
from pliant.codecs.finite import all_finite, finite_flag

__all__ = ["decay_residual", "encode_feedback"]


def decay_residual(residual: Tensor, x: Tensor, decay: float) -> None:
    """Multiply a residual by `decay` before x, like it, joins it, unless x is not finite, which leaves it alone.

    So e <- decay e + x - C(decay e + x), as in SparseLoCo (arXiv:2508.15706, Algorithm 1): of an error, decay^t is left
    after t exchanges.
    """
    if is_accelerator(x.device):
        residual.mul_(torch.where(finite_flag(x), decay, 1.0))
    elif all_finite(x):
        residual.mul_(decay)


def encode_feedback(codec: Codec, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
    """Encode x + residual and keep in residual what the payload does not carry.

    Seide et al., 1-bit SGD (Interspeech 2014); Stich and Karimireddy (arXiv:1909.05350):
    p <- C(x + e); e <- x + e - p, so that the sum of what was sent, plus e, is the sum of what came in.
    An x with a NaN or Inf poisons the payload and leaves e alone. So does a sum that overflows the codec: it leaves
    alone the e of a quantizer's block, and all of the e of a cast, or where kernels are fused that of the element.

    Args:
        codec: Any codec; one with a fused kernel needs one pass, and no memory beside what is given.
        x: float32 (numel,), unchanged.
        residual: float32 (numel,), replaced.
        payload: uint8 (codec.nbytes(numel),), overwritten.
        seed: For the codec's random numbers.

    """
    if is_accelerator(x.device):
        _on_device(codec, x, residual, payload, seed)
        return
    if isinstance(codec, FusedFeedback):
        if all_finite(x):
            codec.encode_feedback(x, residual, payload, seed)
        else:
            codec.encode(x, payload, seed)
        return
    check_encode(codec.name, x, payload, codec.nbytes(x.numel()), residual)
    scratch = x + residual
    codec.encode(scratch, payload, seed)
    codec.decode(payload, scratch)
    if all_finite(scratch):
        residual.add_(x).sub_(scratch)


def _on_device(codec: Codec, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
    """Do the same where the host must not wait to know whether x is finite."""
    if isinstance(codec, FusedOwner) and codec.fuses(x):
        codec.encode_gated(x, residual, payload, seed)
        return
    if isinstance(codec, FusedFeedback):
        before = residual.clone()
        codec.encode_feedback(x, residual, payload, seed)
        torch.where(finite_flag(x), residual, before, out=residual)
        return
    check_encode(codec.name, x, payload, codec.nbytes(x.numel()), residual)
    scratch = x + residual
    codec.encode(scratch, payload, seed)
    codec.decode(payload, scratch)
    residual.copy_(torch.where(finite_flag(scratch), (residual + x).sub_(scratch), residual))
