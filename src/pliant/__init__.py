"""Pliant: data-parallel PyTorch training that bends to the network it has."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pliant.algorithms import (
        OneBitAdam,
        after,
        allreduce,
        async_average,
        between_hosts,
        bf16,
        blocktopk,
        bytegrad,
        choco,
        dcd,
        demo,
        diloco,
        every,
        fp16,
        gossip,
        int4,
        late,
        local_sgd,
        natural,
        onebit,
        owner,
        partition,
        post_local_sgd,
        powersgd,
        qsgd,
        randomk,
        register,
        sparse_loco,
        stale,
        streaming_diloco,
        terngrad,
        topk,
    )
    from pliant.comm import CommError, run_world
    from pliant.engine import (
        Auto,
        Bounds,
        Elastic,
        IncompleteBackwardError,
        NonFiniteGradientError,
        Observation,
        Recording,
        ReplicasDisagreeError,
        Run,
        observe,
        record,
        relax,
    )
    from pliant.schedules import ScheduledSum, ScheduleError, SparseSum
    from pliant.simulator import Costs, simulate
    from pliant.spec import Graph, Machine, Match, Schedule, SyncPlan, Timeline, Topology, Workload, load, save

__all__ = [
    "Auto",
    "Bounds",
    "CommError",
    "Costs",
    "Elastic",
    "Graph",
    "IncompleteBackwardError",
    "Machine",
    "Match",
    "NonFiniteGradientError",
    "Observation",
    "OneBitAdam",
    "Recording",
    "ReplicasDisagreeError",
    "Run",
    "Schedule",
    "ScheduleError",
    "ScheduledSum",
    "SparseSum",
    "SyncPlan",
    "Timeline",
    "Topology",
    "Workload",
    "after",
    "allreduce",
    "async_average",
    "between_hosts",
    "bf16",
    "blocktopk",
    "bytegrad",
    "choco",
    "dcd",
    "demo",
    "diloco",
    "every",
    "fp16",
    "gossip",
    "int4",
    "late",
    "load",
    "local_sgd",
    "natural",
    "observe",
    "onebit",
    "owner",
    "partition",
    "post_local_sgd",
    "powersgd",
    "qsgd",
    "randomk",
    "record",
    "register",
    "relax",
    "run_world",
    "save",
    "simulate",
    "sparse_loco",
    "stale",
    "streaming_diloco",
    "terngrad",
    "topk",
]

# Names are handed on when they are first asked for: a command that needs no torch must not wait for it.
_ROOMS = {
    "pliant.comm": ("CommError", "run_world"),
    "pliant.engine": (
        "Auto",
        "Bounds",
        "Elastic",
        "IncompleteBackwardError",
        "NonFiniteGradientError",
        "Observation",
        "Recording",
        "ReplicasDisagreeError",
        "Run",
        "observe",
        "record",
        "relax",
    ),
    "pliant.schedules": ("ScheduleError", "ScheduledSum", "SparseSum"),
    "pliant.simulator": ("Costs", "simulate"),
    "pliant.spec": (
        "Graph",
        "Machine",
        "Match",
        "Schedule",
        "SyncPlan",
        "Timeline",
        "Topology",
        "Workload",
        "load",
        "save",
    ),
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"pliant has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_WHERE.get(name, "pliant.algorithms")), name)


def __dir__() -> list[str]:
    return list(__all__)
