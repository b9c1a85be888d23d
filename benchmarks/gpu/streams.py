"""Races between streams: some steps of algorithms of each kind under torch's stream sanitizer, which raises.

One rank over NCCL and over Gloo, and two ranks, whose exchanges of buckets overlap.
"""

from collections.abc import Callable

import torch.distributed as dist
from checks import Check, say_error
from pair import run_pair
from training import default_group, trained

__all__ = ["of_pair", "run"]

_NAMES = "allreduce", "bf16", "bytegrad", "int4", "onebit", "topk", "powersgd", "late-onebit", "local_sgd", "gossip"


def run(device: str) -> None:
    if device != "cuda":
        Check(name="stream sanitizer", figure="not looked at", note="torch's sanitizer needs CUDA").say()
        return
    for backend in ("nccl", "gloo"):
        with default_group(backend) as group:
            for name in _NAMES:
                _say_race(f"{name} on {backend}", lambda n=name, g=group: trained(n, device, g, 5))
    run_pair("streams", device, 60)


def of_pair(device: str) -> None:
    for name in _NAMES:
        _say_race(f"{name}, two ranks", lambda n=name: trained(n, device, dist.group.WORLD, 5))


def _say_race(name: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever it is, it is said
        say_error(name, error)
    else:
        Check(name=name, figure="no race", bound="no race", passed=True).say()
