"""Reference of scan.c in plain torch: scans of a whole tensor."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["all_finite", "hash_bytes", "hash_there", "scale"]

_PIECE = 1 << 21
"""Words of 8 bytes that are hashed in one go: for each of them torch makes some more on its way."""


def all_finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


def scale(x: Tensor, factor: float) -> bool:
    return all_finite(x.mul_(factor))


def hash_bytes(x: Tensor) -> int:
    return int(hash_there(x)) % (1 << 64)


def hash_there(x: Tensor) -> Tensor:
    """Return the bits of `hash_bytes` as int64 () that stays where x is."""
    data = x.contiguous().view(-1).view(torch.uint8)
    num_words = data.numel() // 8
    last = pad(data[8 * num_words :], (0, 8 - data.numel() % 8)).view(torch.int64)
    length = (data.numel() + 1) * torch.full_like(last, _to_signed(0xD1B54A32D192ED03))
    total = _mix(last ^ length)[0]
    for start in range(0, num_words, _PIECE):
        stop = min(start + _PIECE, num_words)
        place = torch.arange(start + 1, stop + 1, device=x.device) * _to_signed(0x9E3779B97F4A7C15)
        total = total + _mix(data[8 * start : 8 * stop].clone().view(torch.int64) ^ place).sum()
    return total


def _mix(h: Tensor) -> Tensor:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ _shift(h, 33)) * _to_signed(factor)
    return h ^ _shift(h, 33)


def _shift(h: Tensor, bits: int) -> Tensor:
    """Return h >> bits as if h were unsigned."""
    return (h >> bits) & ((1 << (64 - bits)) - 1)


def _to_signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned value."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
