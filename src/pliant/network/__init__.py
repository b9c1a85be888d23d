"""Emulated clusters on one machine, and what a cluster's links and machines can do, emulated or not."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pliant.network.emulate import EmulatedCluster, RankResult, emulate_cluster
from pliant.network.link_check import LinkReport
from pliant.network.namespaces import CannotEmulateError

if TYPE_CHECKING:
    from pliant.network.machine import measure_machine
    from pliant.network.probing import probe

__all__ = [
    "CannotEmulateError",
    "EmulatedCluster",
    "LinkReport",
    "RankResult",
    "emulate_cluster",
    "measure_machine",
    "probe",
]

# What measures needs torch, and whoever only emulates must not wait for it.
_LATE = {"measure_machine": "pliant.network.machine", "probe": "pliant.network.probing"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"pliant.network has no {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_LATE[name]), name)
