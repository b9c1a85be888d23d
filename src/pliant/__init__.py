"""Pliant: data-parallel PyTorch training that bends to the network it has."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pliant.algorithms import (
        OneBitAdam,
        after,
        allreduce,
        between_hosts,
        bf16,
        blocktopk,
        bytegrad,
        every,
        fp16,
        int4,
        natural,
        onebit,
        partition,
        powersgd,
        qsgd,
        randomk,
        terngrad,
        topk,
    )
    from pliant.comm import CommError, run_world
    from pliant.engine import IncompleteBackwardError, NonFiniteGradientError, ReplicasDisagreeError, Run, relax
    from pliant.spec import Match, SyncPlan, Topology, Workload, load, save

__all__ = [
    "CommError",
    "IncompleteBackwardError",
    "Match",
    "NonFiniteGradientError",
    "OneBitAdam",
    "ReplicasDisagreeError",
    "Run",
    "SyncPlan",
    "Topology",
    "Workload",
    "after",
    "allreduce",
    "between_hosts",
    "bf16",
    "blocktopk",
    "bytegrad",
    "every",
    "fp16",
    "int4",
    "load",
    "natural",
    "onebit",
    "partition",
    "powersgd",
    "qsgd",
    "randomk",
    "relax",
    "run_world",
    "save",
    "terngrad",
    "topk",
]

# Names are handed on when they are first asked for: a command that needs no torch must not wait for it.
_ROOMS = {
    "pliant.comm": ("CommError", "run_world"),
    "pliant.engine": ("IncompleteBackwardError", "NonFiniteGradientError", "ReplicasDisagreeError", "Run", "relax"),
    "pliant.spec": ("Match", "SyncPlan", "Topology", "Workload", "load", "save"),
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"pliant has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_WHERE.get(name, "pliant.algorithms")), name)


def __dir__() -> list[str]:
    return list(__all__)
