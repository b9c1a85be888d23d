"""The random generators of this rank: torch's, on the CPU and on the model's device, Python's and NumPy's."""

import math
import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

__all__ = ["save_generators", "load_generators"]

_DEVICE_BYTES = 16
_NUMPY_WORDS = 624


def save_generators(device: torch.device) -> dict[str, Tensor]:
    """Return where the global generators stand, as tensors of fixed shapes.

    A generator that is not there, as a device's on a CPU, is all NaN or begins with a 0. Generators that a script makes
    for itself, such as that of a sampler, are the script's to save.
    """
    _, words, gauss = random.getstate()
    at_device = torch.zeros(1 + _DEVICE_BYTES, dtype=torch.uint8)
    if device.type == "cuda":
        at_device[0], at_device[1:] = 1, torch.cuda.get_rng_state(device)
    return {
        "torch": torch.get_rng_state(),
        "device": at_device,  # (17,): whether there is one, then its state
        "python": torch.tensor([*words, math.nan if gauss is None else gauss], dtype=torch.float64),  # (626,)
        "numpy": _numpy_state(),  # (627,)
    }


def load_generators(saved: Mapping[str, Tensor], device: torch.device) -> None:
    """Let the global generators go on from where they stood; nothing saved leaves them as they are."""
    if not saved:
        return
    torch.set_rng_state(saved["torch"].cpu())
    if device.type == "cuda" and int(saved["device"][0]):
        torch.cuda.set_rng_state(saved["device"][1:].cpu(), device)
    *words, gauss = saved["python"].tolist()
    version = random.getstate()[0]
    random.setstate((version, tuple(map(int, words)), None if math.isnan(gauss) else gauss))
    if not bool(saved["numpy"].isnan().any()):
        *keys, at, has_gauss, cached = saved["numpy"].tolist()
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(at), int(has_gauss), cached))


def _numpy_state() -> Tensor:
    """Return NumPy's words, place, and spare number, float64 (627,); NaN if the global generator is another kind."""
    state = cast(Any, np.random.get_state(legacy=False))
    if state["bit_generator"] != "MT19937":
        return torch.full((_NUMPY_WORDS + 3,), math.nan, dtype=torch.float64)
    numbers = [*state["state"]["key"].tolist(), state["state"]["pos"], state["has_gauss"], state["gauss"]]
    return torch.tensor(numbers, dtype=torch.float64)
