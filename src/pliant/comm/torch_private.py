"""Private calls into torch about process groups, their worlds and their ends."""

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import OptState
from torch.distributed import HashStore, PrefixStore, ProcessGroup, Store, distributed_c10d as c10d  # pyright: ignore[reportPrivateImportUsage]
from torch.optim import Optimizer

from pliant.comm.base import Limit
from pliant.comm.gloo_private import gloo_group, note_group

__all__ = [
    "GroupMaker",
    "Meet",
    "ThreadWorld",
    "backend_of",
    "destroy",
    "group_factory",
    "hang_up",
    "has_ended_step",
    "is_destroyed",
    "liveness_store",
    "scaler_at_work",
    "set_timeout",
    "steps_since_update",
    "store_of",
    "thread_world",
]

GroupMaker = Callable[[Sequence[int] | None], ProcessGroup]
"""Makes a new group over some ranks of a world (None: all of them); every member calls it."""

Meet = Callable[[str, Sequence[int]], None]
"""Waits until all these ranks have come to a place of this name; raises RuntimeError if one of them is lost."""

_thread_groups: "weakref.WeakKeyDictionary[ProcessGroup, tuple[ThreadWorld, tuple[int, ...]]]" = (
    weakref.WeakKeyDictionary()
)


_registered: "weakref.WeakSet[ProcessGroup]" = weakref.WeakSet()
_NEVER_SENT = (1 << 31) - 1
"""Tag of a message that no rank sends; others are counted from below (`Comm.new_tag`)."""
_made: "weakref.WeakKeyDictionary[ProcessGroup, Counter[tuple[int, ...]]]" = weakref.WeakKeyDictionary()
"""Default world -> how many groups of the same ranks this process has made there: all members count alike."""


class ThreadWorld:
    """Makes real Gloo groups whose ranks are threads of this process, over one in-memory store and loopback."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self.store = HashStore()
        self._lock = threading.Lock()
        # Per rank and members: all members make their common groups in the same order.
        self._numbers: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(size)]

    def new_group(self, rank: int, ranks: Sequence[int] | None = None) -> ProcessGroup:
        """Return a new group over these ranks of the world; each of its threads calls this in the same order."""
        members = tuple(range(self.size)) if ranks is None else tuple(ranks)
        name = f"threads-{'.'.join(map(str, members))}-{self._numbers[rank][members]}"
        self._numbers[rank][members] += 1
        here = members.index(rank)
        group = gloo_group(PrefixStore(name, self.store), here, len(members), name, self.timeout_s, loopback=True)
        with self._lock:
            _thread_groups[group] = (self, members)
        return group


def thread_world(group: ProcessGroup | None) -> tuple[ThreadWorld, tuple[int, ...]] | None:
    """Return the world of threads that a group is of, and which of its ranks, if it is of one."""
    return None if group is None else _thread_groups.get(group)


def group_factory(
    group: ProcessGroup,
    limit: Limit,
    meet: Meet | None = None,
    connect_s: float | None = None,
    backend: str | None = None,
) -> GroupMaker:
    """Return a function that makes groups over the ranks of `group`, in its world of threads or in the default world.

    Args:
        group: Group with the ranks.
        limit: Longest wait for one communication of the groups, as it is when they are made.
        meet: Waits until members have come to the making of the group of a name. In the default world torch itself then
            connects them, and cannot be told that a member is lost meanwhile.
        connect_s: Longest wait for those connections; None: that of one communication.
        backend: Name of the backend of the groups in the default world; None: that of `group`.

    """
    if group in _thread_groups:
        world, members = _thread_groups[group]
        me = members[group.rank()]
        return lambda ranks: world.new_group(me, members if ranks is None else [members[r] for r in ranks])
    global_ranks = dist.get_process_group_ranks(group)
    name_of_backend = backend or dist.get_backend(group)

    def make(ranks: Sequence[int] | None) -> ProcessGroup:
        members = range(len(global_ranks)) if ranks is None else ranks
        here = [global_ranks[rank] for rank in members]
        name = _new_name(here)
        if meet is not None:
            meet(name, members)
        return _new_group(here, name, name_of_backend, limit.timeout_s, connect_s or limit.timeout_s)

    return make


def _new_name(ranks: Sequence[int]) -> str:
    """Return a name for a group of torch's default world that is never used again, and that all its members find.

    torch's own `new_group` with local synchronization names a group by its ranks and by how many groups this process
    has, which differs between members as soon as one of them is in a group of which another is not; and it uses a name
    again that has become free, together with the addresses that the store still has under it.
    """
    world: Any = c10d._world  # pyright: ignore[reportPrivateUsage]
    made_before = _made.setdefault(world.default_pg, Counter())
    members = tuple(ranks)
    made_before[members] += 1
    return f"pliant-{'.'.join(map(str, members))}-{made_before[members]}"


def _new_group(ranks: Sequence[int], name: str, backend: str, timeout_s: float, connect_s: float) -> ProcessGroup:
    """Make a group of torch's default world, which its members alone wait for."""
    world: Any = c10d._world  # pyright: ignore[reportPrivateUsage]
    store: Any = c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    make: Any = c10d._new_process_group_helper  # pyright: ignore[reportPrivateUsage]
    here = ranks.index(dist.get_rank())
    made, _ = make(len(ranks), here, list(ranks), backend, store, name, timeout=timedelta(seconds=connect_s))
    set_timeout(made, timeout_s)
    world.pg_group_ranks[made] = {rank: k for k, rank in enumerate(ranks)}
    _registered.add(made)
    return note_group(made, PrefixStore(name, store))


def set_timeout(group: ProcessGroup, timeout_s: float) -> None:
    """Let a group's communications that begin from now on take no longer than this."""
    c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)  # pyright: ignore[reportPrivateUsage]


def backend_of(group: ProcessGroup, device: torch.device) -> str:
    """Return the name of the backend that moves tensors of a device, in lower case; empty if there is none.

    A group may have one for each kind of device, and its own name then says nothing.
    """
    try:
        moves: Any = group._get_backend(device)  # pyright: ignore
    except RuntimeError:
        return ""
    return str(moves.name()).lower()


def destroy(group: ProcessGroup) -> None:
    """Let torch forget a group that `group_factory` made in its default world; others end with their last reference."""
    if group in _registered and not is_destroyed(group):
        dist.destroy_process_group(group)
    _registered.discard(group)


def is_destroyed(group: ProcessGroup) -> bool:
    """Whether torch has forgotten a group before its end, as when its world is destroyed."""
    world: Any = c10d._world  # pyright: ignore[reportPrivateUsage]
    return group in _registered and group not in world.pg_map


def hang_up(group: ProcessGroup) -> None:
    """Close a group's connections: waits on them, here or at the other end, fail at once.

    Gloo's own abort does nothing; but when one message is late, it closes all connections of the group. A connection
    that is broken already fails before it can be late, and closes no other: so each peer's is tried.
    """
    moves: list[torch.device] = group._device_types  # pyright: ignore
    if group.size() > 1 and any(backend_of(group, device) != "gloo" for device in moves):
        group.abort()
    if backend_of(group, torch.device("cpu")) != "gloo":
        return
    for peer in range(group.size()):
        if peer != group.rank():
            with suppress(RuntimeError):
                group.recv([torch.empty(1)], peer, _NEVER_SENT).wait(timedelta(milliseconds=1))


def liveness_store(group: ProcessGroup, connect_s: float) -> Store | None:
    """Return a store connection for heartbeats, or None in a world of threads, which end together.

    Raises:
        RuntimeError: The store has not answered in time.

    """
    if group in _thread_groups:
        return None
    store: Any = c10d._get_process_group_store(group)  # pyright: ignore[reportPrivateUsage]
    usual = store.timeout
    store.set_timeout(timedelta(seconds=connect_s))
    try:
        return PrefixStore("pliant-liveness", store.clone())
    finally:
        store.set_timeout(usual)


def store_of(group: ProcessGroup) -> Store:
    """Return the store over which the ranks of a group have found each other."""
    return c10d._get_process_group_store(group)  # pyright: ignore


def scaler_at_work() -> torch.amp.GradScaler | None:
    """Return the GradScaler whose step() has called this, or None; enabled or not.

    A scaler tells an optimizer nothing, but it is among the callers of the optimizer's hooks.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def steps_since_update(scaler: torch.amp.GradScaler) -> Mapping[int, Any]:
    """Return what a GradScaler notes of each optimizer until its update, which begins another such mapping."""
    return scaler._per_optimizer_states  # pyright: ignore


def has_ended_step(steps: Mapping[int, Any], optimizer: Optimizer) -> bool:
    """Whether a GradScaler's step() of an optimizer has ended, by such notes: it has made the step, or skipped it."""
    return id(optimizer) in steps and steps[id(optimizer)]["stage"] is OptState.STEPPED
