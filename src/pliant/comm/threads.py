"""Thread worlds: several ranks in one process, with real Gloo groups between them.

They are for tests, notebooks and examples: a world of four ranks takes about 50 ms to make, and only the processes are
replaced.
"""

import gc
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch.distributed import ProcessGroup

from pliant.comm.base import CommError, Limit
from pliant.comm.ddp_private import forget_forward
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.torch_private import ThreadWorld, group_factory

__all__ = ["RankContext", "run_world"]

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """Rank, size, group and comm of one thread of a world."""

    rank: int
    size: int
    process_group: ProcessGroup
    """Process group for ``DistributedDataParallel(model, process_group=...)``."""
    comm: ProcessGroupComm
    """Over a group of its own."""


def run_world(size: int, function: Callable[[RankContext], R], *, timeout_s: float = 60.0) -> list[R]:
    """Run a function on `size` threads, each a rank, and return their results in the order of ranks.

    When one raises, the others' communication is aborted, and the error of the first rank that failed is raised. Models
    are on the CPU: on an accelerator all backward passes of a process share one thread of torch, in which a rank would
    wait for another one for ever.

    Args:
        size: Ranks, at least 1.
        function: Called on each thread with its `RankContext`.
        timeout_s: Longest wait of a communication.

    >>> import torch
    >>> def total(context):
    ...     x = torch.tensor([float(context.rank)])
    ...     context.comm.all_reduce(x).wait()
    ...     return x.item()
    >>> run_world(3, total)
    [3.0, 3.0, 3.0]

    """
    if size < 1:
        raise ValueError(f"a world of {size} ranks cannot be; use 1 or more.")
    world, all_connected = ThreadWorld(size, timeout_s), threading.Barrier(size)
    results: dict[int, R] = {}
    errors: list[tuple[int, BaseException]] = []

    def be(rank: int) -> None:
        group = comm = make_group = None
        try:
            group = world.new_group(rank)
            limit = Limit(timeout_s=timeout_s)
            make_group = group_factory(group, limit)
            comm = ProcessGroupComm(make_group(None), limit=limit, make_group=make_group)
            all_connected.wait()  # a rank that sends nothing would close its connections while others still connect
            results[rank] = function(RankContext(rank=rank, size=size, process_group=group, comm=comm))
        except BaseException as error:  # noqa: BLE001  it is raised below, in the caller's thread
            errors.append((rank, error))
            if comm is None:
                all_connected.abort()
            # Gloo has no working abort: a rank's connections close, and free the others, when its groups are freed.
            traceback.clear_frames(error.__traceback__)
            del group, comm, make_group
            gc.collect()

    threads = [threading.Thread(target=be, args=(rank,), name=f"rank{rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    forget_forward()
    if errors:
        # Whoever failed for another reason than a broken connection began it.
        echoes = (CommError, threading.BrokenBarrierError)
        rank, error = next((e for e in errors if not isinstance(e[1], echoes)), errors[0])
        error.add_note(f"raised on rank {rank} of a world of {size} threads")
        raise error
    return [results[rank] for rank in range(size)]
