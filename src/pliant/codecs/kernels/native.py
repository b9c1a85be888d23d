"""The C kernels through ctypes, which releases the GIL while they run. Signatures are those of the twins."""

from torch import Tensor

from pliant.codecs.kernels.library import library, pointer
from pliant.codecs.kernels.native_rows import (
    add_rows,
    add_squares,
    by_owner,
    distinct_keys,
    subtract_ratios,
    subtract_rows,
)
from pliant.codecs.kernels.reference_cast import cast_decode, cast_encode
from pliant.codecs.kernels.reference_lowrank import orthogonalize

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
    "chunks_encode",
    "clear_at",
    "distinct_keys",
    "fp8_decode",
    "fp8_encode",
    "hash_bytes",
    "levels_decode",
    "levels_encode",
    "low_rank_left",
    "low_rank_right",
    "low_rank_split",
    "minmax8_decode",
    "minmax8_encode",
    "natural_decode",
    "natural_encode",
    "orthogonalize",
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "scale",
    "sigma_decode",
    "sigma_encode",
    "sign_decode",
    "sign_encode",
    "subtract_ratios",
    "subtract_rows",
    "topk_encode",
]


def minmax8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    if residual is None:
        library().minmax8_encode(x.data_ptr(), payload.data_ptr(), x.numel(), block)
    else:
        library().minmax8_encode_feedback(x.data_ptr(), residual.data_ptr(), payload.data_ptr(), x.numel(), block)


def minmax8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    library().minmax8_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def sign_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    if residual is None:
        library().sign_encode(x.data_ptr(), payload.data_ptr(), x.numel(), block)
    else:
        library().sign_encode_feedback(x.data_ptr(), residual.data_ptr(), payload.data_ptr(), x.numel(), block)


def sign_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    library().sign_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def sigma_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    library().sigma_encode(x.data_ptr(), pointer(residual), payload.data_ptr(), x.numel(), block)


def sigma_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    library().sigma_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def levels_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, bits: int, seed: int, *, stochastic: bool
) -> None:
    library().levels_encode(
        x.data_ptr(), pointer(residual), payload.data_ptr(), x.numel(), block, bits, stochastic, seed
    )


def levels_decode(payload: Tensor, acc: Tensor, block: int, bits: int, *, add: bool) -> None:
    library().levels_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, bits, add)


def topk_encode(x: Tensor, indices: Tensor, values: Tensor, stride: int) -> None:
    library().topk_encode(x.data_ptr(), indices.data_ptr(), values.data_ptr(), x.numel(), indices.numel(), stride)


def chunks_encode(x: Tensor, places: Tensor, values: Tensor, block: int, kept: int) -> None:
    pointers = x.data_ptr(), places.data_ptr(), values.data_ptr()
    library().chunks_encode(*pointers, x.numel(), places.numel(), block, kept)


def natural_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int, seed: int) -> None:
    library().natural_encode(x.data_ptr(), pointer(residual), payload.data_ptr(), x.numel(), block, seed)


def natural_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    library().natural_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def fp8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    library().fp8_encode(x.data_ptr(), pointer(residual), payload.data_ptr(), x.numel(), block)


def fp8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    library().fp8_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def _no_strays(strays: int, numel: int) -> None:
    if strays:
        raise ValueError(
            f"a payload names {strays} places outside of a vector of {numel} elements; "
            "it was made for another size or damaged on the way."
        )


def add_at(acc: Tensor, indices: Tensor, values: Tensor) -> None:
    pointers = acc.data_ptr(), acc.numel(), indices.data_ptr(), values.data_ptr()
    _no_strays(library().add_at(*pointers, indices.numel()), acc.numel())


def clear_at(x: Tensor, indices: Tensor) -> None:
    library().clear_at(x.data_ptr(), x.numel(), indices.data_ptr(), indices.numel())


def block_rms(x: Tensor, rms: Tensor, block: int) -> None:
    library().block_rms(x.data_ptr(), rms.data_ptr(), x.numel(), block)


def blocks_gather(x: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    pointers = x.data_ptr(), indices.data_ptr(), values.data_ptr()
    library().blocks_gather(*pointers, x.numel(), indices.numel(), block)


def blocks_add(acc: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    pointers = acc.data_ptr(), indices.data_ptr(), values.data_ptr()
    _no_strays(library().blocks_add(*pointers, acc.numel(), indices.numel(), block), acc.numel())


def blocks_clear(x: Tensor, indices: Tensor, block: int) -> None:
    library().blocks_clear(x.data_ptr(), indices.data_ptr(), x.numel(), indices.numel(), block)


def randomk_gather(x: Tensor, values: Tensor, seed: int) -> None:
    library().randomk_gather(x.data_ptr(), values.data_ptr(), x.numel(), values.numel(), seed)


def randomk_add(acc: Tensor, values: Tensor, seed: int) -> None:
    library().randomk_add(acc.data_ptr(), values.data_ptr(), acc.numel(), values.numel(), seed)


def randomk_clear(x: Tensor, num_values: int, seed: int) -> None:
    library().randomk_clear(x.data_ptr(), x.numel(), num_values, seed)


def low_rank_left(x: Tensor, residual: Tensor, q: Tensor, p: Tensor) -> None:
    pointers = x.data_ptr(), residual.data_ptr(), q.data_ptr(), p.data_ptr()
    library().low_rank_left(*pointers, *x.shape, len(q))


def low_rank_right(x: Tensor, p: Tensor, q: Tensor) -> None:
    library().low_rank_right(x.data_ptr(), p.data_ptr(), q.data_ptr(), *x.shape, len(q))


def low_rank_split(x: Tensor, residual: Tensor, p: Tensor, q: Tensor) -> None:
    pointers = x.data_ptr(), residual.data_ptr(), p.data_ptr(), q.data_ptr()
    library().low_rank_split(*pointers, *x.shape, len(q))


def all_finite(x: Tensor) -> bool:
    return bool(library().all_finite(x.data_ptr(), x.numel()))


def scale(x: Tensor, factor: float) -> bool:
    return bool(library().scale(x.data_ptr(), x.numel(), factor))


def hash_bytes(x: Tensor) -> int:
    return int(library().hash_bytes(x.data_ptr(), x.nbytes))
