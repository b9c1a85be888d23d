"""Private calls into torch about Gloo: groups of its own, and several connections in one group."""

import ctypes
import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, ProcessGroup, Store, distributed_c10d as c10d  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["all_reduce_together", "gloo_group", "note_group"]

_ours: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()
"""All groups that Pliant has made and that are still referred to."""
_watches_forks = False


def gloo_group(
    store: Store,
    rank: int,
    size: int,
    name: str,
    timeout_s: float,
    *,
    loopback: bool = False,
    connections: int = 1,
) -> ProcessGroup:
    """Make a Gloo group outside torch's default world: it ends, and closes its connections, with its last reference.

    Collective over all users of the same store; on the loopback interface, or on that of GLOO_SOCKET_IFNAME. Gloo has a
    context, and so a connection between each two ranks, for each of a group's devices; its threads carry out
    collectives, one each at a time.
    """
    timeout = timedelta(seconds=timeout_s)
    group = ProcessGroup(store, rank, size)
    if loopback or connections > 1:
        options = dist.ProcessGroupGloo._Options()  # pyright: ignore
        options._timeout = timeout
        options._devices = list(islice(cycle(_devices(loopback=loopback)), connections))
        options._threads = 2 * connections
        backend = dist.ProcessGroupGloo(store, rank, size, options)  # pyright: ignore
    else:
        backend = dist.ProcessGroupGloo(store, rank, size, timeout)  # pyright: ignore
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)  # pyright: ignore
    group._set_group_name(name)  # pyright: ignore[reportArgumentType]
    return note_group(group)


def _devices(*, loopback: bool) -> Sequence[Any]:
    """Return a device on the loopback interface, or those that Gloo itself chooses."""
    if loopback:
        return [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    alone: Any = dist.ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=1))
    return alone.options._devices


def all_reduce_together(tensors: Sequence[Tensor], op: Any, group: ProcessGroup) -> dist.Work | None:
    """Start one reduction of all these tensors, as if they were one; Gloo's threads copy several into one and back."""
    if len(tensors) == 1:
        return dist.all_reduce(tensors[0], op, group, async_op=True)
    options: Any = c10d.AllreduceCoalescedOptions()  # pyright: ignore
    options.reduceOp = op
    return group.allreduce_coalesced(list(tensors), options)


def note_group(group: ProcessGroup) -> ProcessGroup:
    """Keep a group that Pliant has made from being freed in a forked process, and return it."""
    global _watches_forks
    _ours.add(group)
    if not _watches_forks:
        os.register_at_fork(after_in_child=_keep_groups)
        _watches_forks = True
    return group


def _keep_groups() -> None:
    """Never free a group in a process that was forked from its own.

    Freeing waits for threads that only the parent has, and takes the sockets out of the parent's epoll.
    """
    world: Any = c10d._world  # pyright: ignore[reportPrivateUsage]
    for kept in [*_ours, *world.pg_map, *world.pg_map.values()]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
