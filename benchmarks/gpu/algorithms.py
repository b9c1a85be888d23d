"""Every algorithm through DDP with one rank on the device, on NCCL and on Gloo, beside the same on the CPU."""

from collections.abc import Callable

import torch
from checks import Check, say_error
from torch import Tensor
from training import EVERY, default_group, trained

__all__ = ["run", "say_distance"]

_STEPS = 4
_BOUND = 1e-5  # a step of the optimizer may be rounded once on a device and twice on the CPU


def run(device: str) -> None:
    backends = ("gloo", "nccl") if device == "cuda" else ("gloo",)
    for backend in backends:
        plain, exact = (_alone(name, device, backend) for name in (None, "allreduce"))
        figure = "equal" if torch.equal(plain, exact) else f"{float((plain - exact).abs().max()):.1e} apart"
        held = figure == "equal"
        Check(name=f"exact plan and plain DDP on {backend}", figure=figure, bound="to the bit", passed=held).say()
    for name in EVERY:
        wanted = _alone(name, "cpu", "gloo")
        for backend in backends:
            say_distance(f"{name} on {backend}", lambda n=name, b=backend: _alone(n, device, b), wanted)


def _alone(name: str | None, device: str, backend: str) -> Tensor:
    with default_group(backend) as group:
        return trained(name, device, group, _STEPS)


def say_distance(name: str, call: Callable[[], Tensor], wanted: Tensor) -> None:
    """Say how far the weights that a training ends with are from those of the CPU, or that it failed."""
    try:
        found = call()
    except Exception as error:  # noqa: BLE001  whatever it is, it is said
        say_error(name, error)
        return
    away = float((found - wanted).norm() / wanted.norm())
    Check(name=name, figure=f"{away:.1e} of the CPU's", bound=f"{_BOUND:.0e}", passed=away <= _BOUND).say()
