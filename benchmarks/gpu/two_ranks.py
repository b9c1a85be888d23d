"""Every algorithm with two ranks, as threads over Gloo, whose tensors lie on the device, beside the same on the CPU."""

import torch
from checks import Check, say_error
from training import EVERY, trained

import pliant
from algorithms import say_distance

__all__ = ["run"]

_STEPS = 4
_UNORDERED = {"gossip-free", "async_average", "stale-free"}
"""Those whose ranks wait for nobody: no two runs are alike, and each is only held to its end."""


def run(device: str) -> None:
    for name in EVERY:
        if name not in _UNORDERED:
            say_distance(name, lambda n=name: _weights(n, device), _weights(name, "cpu"))
            continue
        try:
            held = bool(_weights(name, device).isfinite().all())
        except Exception as error:  # noqa: BLE001  whatever it is, it is said
            say_error(name, error)
            continue
        figure = "ended" if held else "weights are not finite"
        Check(name=name, figure=figure, bound="no error", passed=held, note="no two runs are alike").say()


def _weights(name: str, device: str) -> torch.Tensor:
    """Return the last weights of rank 0."""
    return pliant.run_world(2, lambda c: trained(name, device, c.process_group, _STEPS), timeout_s=30)[0]
