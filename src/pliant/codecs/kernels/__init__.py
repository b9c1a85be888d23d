"""The fused kernels: C on the CPU, and torch twins, the same to the bit, everywhere else."""

import warnings
from functools import cache
from types import ModuleType

from torch import Tensor

from pliant.codecs.kernels import library, native, reference

__all__ = ["kernels_for"]


def kernels_for(x: Tensor) -> ModuleType:
    """Return the module of kernels that works where a tensor lies."""
    return _on_cpu() if x.device.type == "cpu" else reference


@cache
def _on_cpu() -> ModuleType:
    """Return the C kernels, or their torch twins, with one warning, where no library can be loaded."""
    try:
        library.library()
    except library.KernelsMissingError as error:
        warnings.warn(
            f"{error} Until then torch does their work: the same results to the bit, several times slower.",
            RuntimeWarning,
            stacklevel=2,
        )
        return reference
    return native
