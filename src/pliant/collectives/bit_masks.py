"""Masks on the wire: eight places in a byte."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["pack_bits", "unpack_bits"]


def pack_bits(mask: Tensor, num_bytes: int) -> Tensor:
    """Return a bit for each of mask, bool (num,), in uint8 (num_bytes,)."""
    bits = np.zeros(num_bytes, np.uint8)
    found = np.packbits(mask.cpu().numpy())
    bits[: len(found)] = found
    return torch.from_numpy(bits).to(mask.device)


def unpack_bits(bits: Tensor, num: int) -> Tensor:
    """Return the mask, bool (num,), that `pack_bits` was given."""
    mask = np.unpackbits(bits.cpu().numpy(), count=num).astype(bool)
    return torch.from_numpy(mask).to(bits.device)
