"""The fused kernels: C on the CPU, and torch twins, the same to the bit, everywhere else."""

from types import ModuleType

from torch import Tensor

from pliant.codecs.kernels import native, reference

__all__ = ["kernels_for"]


def kernels_for(x: Tensor) -> ModuleType:
    """Return the module of kernels that works where a tensor lies."""
    return native if x.device.type == "cpu" else reference
