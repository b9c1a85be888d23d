"""Synchronizations of the host in 20 steps of every algorithm through DDP, one rank.

On CUDA torch's debug mode counts them (not those of torch.distributed, nor copies from pageable memory); on the CPU the
reads of a number by the calling thread stand in, and nothing is held.
"""

import warnings

import torch
from checks import Check, say_error
from torch.utils._python_dispatch import TorchDispatchMode
from training import EVERY, default_group, trained

__all__ = ["run"]

_WARM_UP, _STEPS = 4, 20
_FREE = {"bounded_staleness", "stale-free", "stale-coded"}
"""Algorithms at a free pace, whose gradients and weights go to and from host memory in the loop's own thread."""


class _Reads(TorchDispatchMode):
    num = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.num += "_local_scalar_dense" in str(function)
        return function(*args, **(kwargs or {}))


def _on_cuda(name: str) -> int:
    def watch(step: int) -> None:
        torch.cuda.set_sync_debug_mode("warn" if _WARM_UP <= step < _WARM_UP + _STEPS else "default")

    with warnings.catch_warnings(record=True) as said, default_group("nccl") as group:
        warnings.simplefilter("always")
        trained(name, "cuda", group, _WARM_UP + _STEPS, watch)
    return sum("called a synchronizing" in str(warning.message) for warning in said)


def _on_cpu(name: str) -> int:
    before = {}
    with _Reads() as reads, default_group("gloo") as group:
        trained(name, "cpu", group, _WARM_UP + _STEPS, lambda step: before.setdefault(step, reads.num))
        return before[_WARM_UP + _STEPS] - before[_WARM_UP]


def run(device: str) -> None:
    for name in EVERY:
        try:
            num = _on_cuda(name) if device == "cuda" else _on_cpu(name)
        except Exception as error:  # noqa: BLE001  whatever it is, it is said
            say_error(name, error)
            continue
        free = name in _FREE
        held = num == 0 if device == "cuda" and not free else None
        note = "owners serve from host memory" if free else ""
        Check(name=f"{name}, {_STEPS} steps", figure=str(num), bound="" if free else "0", passed=held, note=note).say()
