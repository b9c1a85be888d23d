"""Private calls into torch about Gloo: groups of its own, and several connections in one group."""

import atexit
import ctypes
import os
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, Store, distributed_c10d as c10d  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["all_reduce_together", "gloo_group", "more_connections", "note_group"]

_ours: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()
"""All groups that Pliant has made and that are still referred to."""
_stores: "weakref.WeakKeyDictionary[ProcessGroup, Store]" = weakref.WeakKeyDictionary()
_turns: "weakref.WeakKeyDictionary[ProcessGroup, count[int]]" = weakref.WeakKeyDictionary()
"""Group -> numbers of the times that it has got more connections, which all members count alike."""
_LAST_MOMENT_S = 0.02
_watches_process = False


def gloo_group(
    store: Store, rank: int, size: int, name: str, timeout_s: float, *, loopback: bool = False
) -> ProcessGroup:
    """Make a Gloo group outside torch's default world: it ends, and closes its connections, with its last reference.

    Collective over all users of the same store; on the loopback interface, or on that of GLOO_SOCKET_IFNAME.
    """
    if loopback:
        devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return note_group(_over(devices, store, rank, size, name, timeout_s), store)
    backend = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))  # pyright: ignore
    return note_group(_with_backend(backend, store, rank, size, name), store)


def more_connections(group: ProcessGroup, num: int, timeout_s: float) -> list[ProcessGroup]:
    """Make groups of the same ranks, each with one more connection between each two of them. Collective.

    Gloo has one connection between two ranks of a group, and connects the ranks in some eight round trips to the store
    and to each other. So all groups connect at once, each in a thread, over a connection of its own to the store. They
    share a device, and so the thread that receives.

    Args:
        group: A group over Gloo that Pliant has made.
        num: Number of groups.
        timeout_s: Longest wait for one communication.

    """
    if num < 1:
        return []
    store: Any = _stores[group]
    turn, backend = next(_turns[group]), cast(Any, group)._get_backend(torch.device("cpu"))
    devices, rank, size = backend.options._devices, group.rank(), group.size()

    def make(k: int) -> ProcessGroup:
        name = f"{group.group_name}-{turn}-{k}"
        own = PrefixStore(name, store.clone())
        return note_group(_over(devices, own, rank, size, name, timeout_s), own)

    with ThreadPoolExecutor(num, thread_name_prefix="pliant-connect") as pool:
        return list(pool.map(make, range(num)))


def _over(devices: Any, store: Store, rank: int, size: int, name: str, timeout_s: float) -> ProcessGroup:
    options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore
    options._timeout, options._devices = timedelta(seconds=timeout_s), devices
    return _with_backend(dist.ProcessGroupGloo(store, rank, size, options), store, rank, size, name)  # pyright: ignore


def _with_backend(backend: Any, store: Store, rank: int, size: int, name: str) -> ProcessGroup:
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)  # pyright: ignore
    group._set_group_name(name)  # pyright: ignore[reportArgumentType]
    return group


def all_reduce_together(tensors: Sequence[Tensor], op: Any, group: ProcessGroup) -> dist.Work | None:
    """Start one reduction of all these tensors, as if they were one; Gloo's threads copy several into one and back."""
    if len(tensors) == 1:
        return dist.all_reduce(tensors[0], op, group, async_op=True)
    options: Any = c10d.AllreduceCoalescedOptions()  # pyright: ignore
    options.reduceOp = op
    return group.allreduce_coalesced(list(tensors), options)


def note_group(group: ProcessGroup, store: Store) -> ProcessGroup:
    """Keep a group that Pliant has made from being freed in a forked process, and return it.

    Args:
        group: The group.
        store: Where its ranks have found each other, under names of their own.

    """
    global _watches_process
    _ours.add(group)
    _stores[group], _turns[group] = store, count()
    if not _watches_process:
        os.register_at_fork(after_in_child=_keep_groups)
        atexit.register(_let_works_end)
        _watches_process = True
    return group


def _let_works_end() -> None:
    """Give up the interpreter for a moment before it ends.

    torch's threads free the tensors of a communication after its end has been told, and need Python's lock for that. A
    thread that asks for it once Python is ending is ended in the midst of a destructor, and with it the process, by
    SIGABRT: so a script would end now and then, with Pliant or without, whose last line is a collective.
    """
    time.sleep(_LAST_MOMENT_S)


def _keep_groups() -> None:
    """Never free a group in a process that was forked from its own.

    Freeing waits for threads that only the parent has, and takes the sockets out of the parent's epoll.
    """
    world: Any = c10d._world  # pyright: ignore[reportPrivateUsage]
    for kept in [*_ours, *world.pg_map, *world.pg_map.values()]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
