"""The C kernels through ctypes, which releases the GIL while they run. Signatures are those of the twins."""

import ctypes
import importlib.util
from ctypes import c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from torch import Tensor

__all__ = [
    "add_at",
    "all_finite",
    "block_rms",
    "blocks_add",
    "blocks_clear",
    "blocks_gather",
    "clear_at",
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
    "randomk_add",
    "randomk_clear",
    "randomk_gather",
    "scale",
    "sign_decode",
    "sign_encode",
    "topk_encode",
]

_P, _N, _I, _U = c_void_p, c_int64, c_int32, c_uint32
_SIGNATURES = {
    "minmax8_encode": (None, _P, _P, _N, _N),
    "minmax8_encode_feedback": (None, _P, _P, _P, _N, _N),
    "minmax8_decode": (None, _P, _P, _N, _N, _I),
    "sign_encode": (None, _P, _P, _N, _N),
    "sign_encode_feedback": (None, _P, _P, _P, _N, _N),
    "sign_decode": (None, _P, _P, _N, _N, _I),
    "levels_encode": (None, _P, _P, _P, _N, _N, _I, _I, _U),
    "levels_decode": (None, _P, _P, _N, _N, _I, _I),
    "topk_encode": (None, _P, _P, _P, _N, _N, _N),
    "natural_encode": (None, _P, _P, _P, _N, _N, _U),
    "natural_decode": (None, _P, _P, _N, _N, _I),
    "fp8_encode": (None, _P, _P, _P, _N, _N),
    "fp8_decode": (None, _P, _P, _N, _N, _I),
    "add_at": (_N, _P, _N, _P, _P, _N),
    "clear_at": (None, _P, _N, _P, _N),
    "block_rms": (None, _P, _P, _N, _N),
    "blocks_gather": (None, _P, _P, _P, _N, _N, _N),
    "blocks_add": (_N, _P, _P, _P, _N, _N, _N),
    "blocks_clear": (None, _P, _P, _N, _N, _N),
    "randomk_gather": (None, _P, _P, _N, _N, _U),
    "randomk_add": (None, _P, _P, _N, _N, _U),
    "randomk_clear": (None, _P, _N, _N, _U),
    "low_rank_left": (None, _P, _P, _P, _P, _N, _N, _N),
    "low_rank_right": (None, _P, _P, _P, _N, _N, _N),
    "low_rank_split": (None, _P, _P, _P, _P, _N, _N, _N),
    "all_finite": (_I, _P, _N),
    "scale": (_I, _P, _N, c_float),
    "hash_bytes": (c_uint64, _P, _N),
}


def _found() -> Path:
    """Return the library: built in place beside this file, or installed; the newer one if there are both."""
    spec = importlib.util.find_spec("pliant.codecs.kernels._cpu")
    places = {Path(__file__).with_name("_cpu.so")} | ({Path(spec.origin)} if spec and spec.origin else set())
    built = [place for place in places if place.exists()]
    if not built:
        raise RuntimeError(
            "Pliant's compiled kernels are missing: this is a source tree that was never built; "
            "install the package (pip install .), or build in place as CMakeLists.txt says."
        )
    return max(built, key=lambda place: place.stat().st_mtime)


@cache
def _library() -> ctypes.CDLL:
    path = _found()
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise RuntimeError(
                f"Pliant's compiled kernels at {path} are older than its Python code: {name!r} is not among them; "
                "build again, by pip install or as CMakeLists.txt says."
            )
        function.restype, function.argtypes = result, arguments
    return library


def minmax8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    if residual is None:
        _library().minmax8_encode(x.data_ptr(), payload.data_ptr(), x.numel(), block)
    else:
        _library().minmax8_encode_feedback(x.data_ptr(), residual.data_ptr(), payload.data_ptr(), x.numel(), block)


def minmax8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    _library().minmax8_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def sign_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    if residual is None:
        _library().sign_encode(x.data_ptr(), payload.data_ptr(), x.numel(), block)
    else:
        _library().sign_encode_feedback(x.data_ptr(), residual.data_ptr(), payload.data_ptr(), x.numel(), block)


def sign_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    _library().sign_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def levels_encode(
    x: Tensor, residual: Tensor | None, payload: Tensor, block: int, bits: int, seed: int, *, stochastic: bool
) -> None:
    kept = None if residual is None else residual.data_ptr()
    _library().levels_encode(x.data_ptr(), kept, payload.data_ptr(), x.numel(), block, bits, stochastic, seed)


def levels_decode(payload: Tensor, acc: Tensor, block: int, bits: int, *, add: bool) -> None:
    _library().levels_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, bits, add)


def topk_encode(x: Tensor, indices: Tensor, values: Tensor, stride: int) -> None:
    _library().topk_encode(x.data_ptr(), indices.data_ptr(), values.data_ptr(), x.numel(), indices.numel(), stride)


def natural_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int, seed: int) -> None:
    kept = None if residual is None else residual.data_ptr()
    _library().natural_encode(x.data_ptr(), kept, payload.data_ptr(), x.numel(), block, seed)


def natural_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    _library().natural_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def fp8_encode(x: Tensor, residual: Tensor | None, payload: Tensor, block: int) -> None:
    kept = None if residual is None else residual.data_ptr()
    _library().fp8_encode(x.data_ptr(), kept, payload.data_ptr(), x.numel(), block)


def fp8_decode(payload: Tensor, acc: Tensor, block: int, *, add: bool) -> None:
    _library().fp8_decode(payload.data_ptr(), acc.data_ptr(), acc.numel(), block, add)


def _no_strays(strays: int, numel: int) -> None:
    if strays:
        raise ValueError(
            f"a payload names {strays} places outside of a vector of {numel} elements; "
            "it was made for another size or damaged on the way."
        )


def add_at(acc: Tensor, indices: Tensor, values: Tensor) -> None:
    pointers = acc.data_ptr(), acc.numel(), indices.data_ptr(), values.data_ptr()
    _no_strays(_library().add_at(*pointers, indices.numel()), acc.numel())


def clear_at(x: Tensor, indices: Tensor) -> None:
    _library().clear_at(x.data_ptr(), x.numel(), indices.data_ptr(), indices.numel())


def block_rms(x: Tensor, rms: Tensor, block: int) -> None:
    _library().block_rms(x.data_ptr(), rms.data_ptr(), x.numel(), block)


def blocks_gather(x: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    pointers = x.data_ptr(), indices.data_ptr(), values.data_ptr()
    _library().blocks_gather(*pointers, x.numel(), indices.numel(), block)


def blocks_add(acc: Tensor, indices: Tensor, values: Tensor, block: int) -> None:
    pointers = acc.data_ptr(), indices.data_ptr(), values.data_ptr()
    _no_strays(_library().blocks_add(*pointers, acc.numel(), indices.numel(), block), acc.numel())


def blocks_clear(x: Tensor, indices: Tensor, block: int) -> None:
    _library().blocks_clear(x.data_ptr(), indices.data_ptr(), x.numel(), indices.numel(), block)


def randomk_gather(x: Tensor, values: Tensor, seed: int) -> None:
    _library().randomk_gather(x.data_ptr(), values.data_ptr(), x.numel(), values.numel(), seed)


def randomk_add(acc: Tensor, values: Tensor, seed: int) -> None:
    _library().randomk_add(acc.data_ptr(), values.data_ptr(), acc.numel(), values.numel(), seed)


def randomk_clear(x: Tensor, num_values: int, seed: int) -> None:
    _library().randomk_clear(x.data_ptr(), x.numel(), num_values, seed)


def low_rank_left(x: Tensor, residual: Tensor, q: Tensor, p: Tensor) -> None:
    pointers = x.data_ptr(), residual.data_ptr(), q.data_ptr(), p.data_ptr()
    _library().low_rank_left(*pointers, *x.shape, len(q))


def low_rank_right(x: Tensor, p: Tensor, q: Tensor) -> None:
    _library().low_rank_right(x.data_ptr(), p.data_ptr(), q.data_ptr(), *x.shape, len(q))


def low_rank_split(x: Tensor, residual: Tensor, p: Tensor, q: Tensor) -> None:
    pointers = x.data_ptr(), residual.data_ptr(), p.data_ptr(), q.data_ptr()
    _library().low_rank_split(*pointers, *x.shape, len(q))


def all_finite(x: Tensor) -> bool:
    return bool(_library().all_finite(x.data_ptr(), x.numel()))


def scale(x: Tensor, factor: float) -> bool:
    return bool(_library().scale(x.data_ptr(), x.numel(), factor))


def hash_bytes(x: Tensor) -> int:
    return int(_library().hash_bytes(x.data_ptr(), x.nbytes))
