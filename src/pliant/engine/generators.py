"""Random generators of this rank: torch's, on the CPU and on the model's device, Python's and NumPy's."""

import math
import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pliant.accelerator import generator_state, is_accelerator, set_generator_state

__all__ = ["load_generators", "save_generators"]

_DEVICE_BYTES = 16
_NUMPY_WORDS = 624


def save_generators(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the global generators, as tensors of fixed shapes.

    A missing generator, such as a device's on a CPU, is all NaN or begins with a 0. The script saves generators that it
    makes for itself, such as that of a sampler.
    """
    _, words, gauss = random.getstate()
    at_device = torch.zeros(1 + _DEVICE_BYTES, dtype=torch.uint8)
    if (state := generator_state(device)) is not None:
        at_device[0], at_device[1:] = 1, state
    return {
        "torch": torch.get_rng_state(),
        "device": at_device,  # (17,): whether there is one, then its state
        "python": torch.tensor([*words, math.nan if gauss is None else gauss], dtype=torch.float64),  # (626,)
        "numpy": _numpy_state(),  # (627,)
    }


def load_generators(saved: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the global generators to saved states; a state that was not saved leaves its generator as it is."""
    if not saved:
        return
    torch.set_rng_state(saved["torch"].cpu())
    if is_accelerator(device) and int(saved["device"][0]):
        set_generator_state(saved["device"][1:], device)
    *words, gauss = saved["python"].tolist()
    version = random.getstate()[0]
    random.setstate((version, tuple(map(int, words)), None if math.isnan(gauss) else gauss))
    if not bool(saved["numpy"].isnan().any()):
        *keys, at, has_gauss, cached = saved["numpy"].tolist()
        np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(at), int(has_gauss), cached))


def _numpy_state() -> Tensor:
    """Return the words, position and spare number of NumPy's generator, float64 (627,); NaN for another kind."""
    state = cast(Any, np.random.get_state(legacy=False))
    if state["bit_generator"] != "MT19937":
        return torch.full((_NUMPY_WORDS + 3,), math.nan, dtype=torch.float64)
    numbers = [*state["state"]["key"].tolist(), state["state"]["pos"], state["has_gauss"], state["gauss"]]
    return torch.tensor(numbers, dtype=torch.float64)
