# pyright: basic
"""The kernels for accelerators that Triton compiles for; signatures are those of `native`.

No function here waits for the device, except those that the references lend: what returns a number or raises. Whatever
has one code for each element is fused with error feedback, with a `gate` if asked for, and with the step of an owner
(`*_mean`).
"""

from pliant.codecs.kernels.reference import (
    add_rows,
    add_squares,
    all_finite,
    block_rms,
    blocks_add,
    blocks_clear,
    blocks_gather,
    by_owner,
    chunks_encode,
    distinct_keys,
    hash_bytes,
    low_rank_left,
    low_rank_right,
    randomk_add,
    randomk_clear,
    randomk_gather,
    scale,
    subtract_ratios,
    subtract_rows,
)
from pliant.codecs.kernels.triton.floats import (
    cast_decode,
    cast_encode,
    cast_mean,
    fp8_decode,
    fp8_encode,
    fp8_mean,
    natural_decode,
    natural_encode,
    natural_mean,
)
from pliant.codecs.kernels.triton.levels import levels_decode, levels_encode, levels_mean
from pliant.codecs.kernels.triton.lowrank import low_rank_split, orthogonalize
from pliant.codecs.kernels.triton.minmax8 import minmax8_decode, minmax8_encode, minmax8_mean
from pliant.codecs.kernels.triton.select import add_at, clear_at, topk_encode
from pliant.codecs.kernels.triton.sigma import sigma_decode, sigma_encode, sigma_mean
from pliant.codecs.kernels.triton.sign import sign_decode, sign_encode, sign_mean

__all__ = [
    "add_at",
    "add_rows",
    "add_squares",
    "all_finite",
    "block_rms",
    "blocks_add",
    "blocks_clear",
    "blocks_gather",
    "by_owner",
    "cast_decode",
    "cast_encode",
    "cast_mean",
    "chunks_encode",
    "clear_at",
    "distinct_keys",
    "fp8_decode",
    "fp8_encode",
    "fp8_mean",
    "hash_bytes",
    "levels_decode",
    "levels_encode",
    "levels_mean",
    "low_rank_left",
    "low_rank_right",
    "low_rank_split",
    "minmax8_decode",
    "minmax8_encode",
    "minmax8_mean",
    "natural_decode",
    "natural_encode",
    "natural_mean",
    "orthogonalize",
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "scale",
    "sigma_decode",
    "sigma_encode",
    "sigma_mean",
    "sign_decode",
    "sign_encode",
    "sign_mean",
    "subtract_ratios",
    "subtract_rows",
    "topk_encode",
]
