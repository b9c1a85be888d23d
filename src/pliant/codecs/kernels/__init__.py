"""The fused kernels: C on the CPU, Triton on accelerators, and, where neither is, plain torch, the same to the bit."""

import importlib
import importlib.util
import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from pliant.codecs.kernels import library, native, reference

__all__ = ["kernels_for"]


def kernels_for(x: Tensor) -> ModuleType:
    """Return the module of kernels that works where a tensor lies."""
    return _on_cpu() if x.device.type == "cpu" else _on_accelerator(x.device.type)


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


@cache
def _on_accelerator(kind: str) -> ModuleType:
    """Return the Triton kernels, or their torch twins where Triton does not compile for this kind of device.

    Triton is imported here and nowhere else, and only where the machine has such a device.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None or device.type != kind:
        return reference
    if importlib.util.find_spec("triton") is None:
        warnings.warn(
            f"Triton is not installed, so torch codes what lies on {kind}: the same results to the bit, with some "
            'hundred launches for one; install it (pip install "pliant[cuda]").',
            RuntimeWarning,
            stacklevel=2,
        )
        return reference
    try:
        active = importlib.import_module("triton.runtime.driver").driver.active.get_active_torch_device()
    except RuntimeError:  # no backend of Triton's knows the device
        return reference
    return importlib.import_module("pliant.codecs.kernels.triton") if active.type == kind else reference
