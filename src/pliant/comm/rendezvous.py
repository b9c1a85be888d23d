"""Store in which the ranks of an elastic run find each other."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.torch_private import thread_world

__all__ = ["Rendezvous", "rendezvous_for"]


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Store in which the ranks of a world find each other."""

    store: Store
    """Store of the rendezvous; in a world of processes a connection of its own, hosted by this rank if it hosts the
    store."""
    beside: Store
    """Another, for a second thread, since a call may block; in a world of threads the same."""
    rank: int
    size: int
    loopback: bool
    """Whether all ranks are threads of this process."""
    host: str = ""
    """Where the store of a world of processes is."""


def rendezvous_for(group: ProcessGroup | None, timeout_s: float) -> Rendezvous:
    """Return the store of a world of threads, or, for None, that of torchrun's environment.

    torch's default world is not needed, and may be there or not: a process that was started again cannot enter it.

    Raises:
        ValueError: The group belongs to torch's default world, or torchrun's environment is not there.
        RuntimeError: Nobody has hosted the store in time.

    """
    if group is not None and (found := thread_world(group)) is not None:
        world, members = found
        return Rendezvous(
            store=world.store, beside=world.store, rank=members[group.rank()], size=world.size, loopback=True
        )
    if group is not None:
        raise ValueError(
            "an elastic run makes its own groups, which outlive a rank, but was given a process group of torch's "
            "default world; leave `group` out: ranks meet in the store of MASTER_ADDR and MASTER_PORT."
        )
    rendezvous: Any = dist.rendezvous  # pyright: ignore[reportPrivateImportUsage]
    if "WORLD_SIZE" not in os.environ:
        raise ValueError("the environment has no WORLD_SIZE, the number of ranks; start them with torchrun.")
    # A world of one, as far as torch knows: else who hosts the store is held up in here until all others have come.
    store, rank, _ = next(iter(rendezvous("env://", world_size=1, timeout=timedelta(seconds=timeout_s))))
    size = int(os.environ["WORLD_SIZE"])
    return Rendezvous(store=store, beside=store.clone(), rank=rank, size=size, loopback=False, host=_host_of(store))


def _host_of(store: Any) -> str:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))
