"""Every algorithm with two ranks over Gloo, whose tensors lie on the device, beside the same on the CPU."""

import torch
import torch.distributed as dist
from checks import Check, say_error
from pair import run_pair
from training import EVERY, trained

from algorithms import say_distance
from tables import NETWORK_DECIDES

__all__ = ["of_pair", "run"]

_STEPS = 4
_LIMIT_S = 85


def run(device: str) -> None:
    run_pair("two_ranks", device, _LIMIT_S)


def of_pair(device: str) -> None:
    for name in EVERY:
        dist.barrier()
        if name not in NETWORK_DECIDES:
            say_distance(name, lambda n=name: _weights(n, device), _weights(name, "cpu"))
            continue
        try:  # no two runs are alike, so that each is only held to its end
            held = bool(_weights(name, device).isfinite().all())
        except Exception as error:  # noqa: BLE001  whatever it is, it is said
            say_error(name, error)
            continue
        figure = "ended" if held else "weights are not finite"
        Check(name=name, figure=figure, bound="no error", passed=held, note="no two runs are alike").say()


def _weights(name: str, device: str) -> torch.Tensor:
    return trained(name, device, dist.group.WORLD, _STEPS)
