"""The compiled kernels: where they are, and the signatures of their functions."""

import ctypes
import importlib.util
from ctypes import c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from torch import Tensor

__all__ = ["KernelsMissingError", "library", "pointer"]

_P, _N, _I, _U = c_void_p, c_int64, c_int32, c_uint32
_SIGNATURES = {
    "minmax8_encode": (None, _P, _P, _N, _N),
    "minmax8_encode_feedback": (None, _P, _P, _P, _N, _N),
    "minmax8_decode": (None, _P, _P, _N, _N, _I),
    "sign_encode": (None, _P, _P, _N, _N),
    "sign_encode_feedback": (None, _P, _P, _P, _N, _N),
    "sign_decode": (None, _P, _P, _N, _N, _I),
    "sigma_encode": (None, _P, _P, _P, _N, _N),
    "sigma_decode": (None, _P, _P, _N, _N, _I),
    "levels_encode": (None, _P, _P, _P, _N, _N, _I, _I, _U),
    "levels_decode": (None, _P, _P, _N, _N, _I, _I),
    "topk_encode": (None, _P, _P, _P, _N, _N, _N),
    "chunks_encode": (None, _P, _P, _P, _N, _N, _N, _N),
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
    "number_keys": (_N, _P, _N, _P, _P),
    "add_rows": (None, _P, _P, _P, _P, _P, _N, _N, _N),
    "subtract_rows": (_N, _P, _P, _P, _N, _N, _N),
    "add_squares": (_N, _P, _P, _P, _P, _N, _N, _N),
    "subtract_ratios": (_N, _P, _P, _P, _P, _N, _N, _N, c_float, c_float),
    "by_owner": (None, _P, _P, _P, _N, _N, _N, _P, _P, _P, _P, _P, _P, _P),
    "all_finite": (_I, _P, _N),
    "scale": (_I, _P, _N, c_float),
    "hash_bytes": (c_uint64, _P, _N),
}


class KernelsMissingError(RuntimeError):
    """No compiled kernels are here that this machine can load."""


def _found() -> Path:
    """Return the library: built in place beside this file, or installed; the newer one if there are both."""
    spec = importlib.util.find_spec("pliant.codecs.kernels._cpu")
    places = {Path(__file__).with_name("_cpu.so")} | ({Path(spec.origin)} if spec and spec.origin else set())
    built = [place for place in places if place.exists()]
    if not built:
        raise KernelsMissingError(
            "Pliant's compiled kernels are missing: it was installed without a C compiler, or never built; install a "
            "wheel, or a compiler and then the package (pip install .), or build in place as CMakeLists.txt says."
        )
    return max(built, key=lambda place: place.stat().st_mtime)


@cache
def library() -> ctypes.CDLL:
    path = _found()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsMissingError(
            f"Pliant's compiled kernels at {path} cannot be loaded here ({error}); install the wheel for this machine, "
            "or a C compiler and then the package from its sources (pip install .)."
        ) from error
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise RuntimeError(
                f"Pliant's compiled kernels at {path} are older than its Python code: {name!r} is not among them; "
                "build again, by pip install or as CMakeLists.txt says."
            )
        function.restype, function.argtypes = result, arguments
    return library


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
