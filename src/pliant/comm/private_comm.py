"""Comms over groups of their own, and comms of one rank."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import HashStore, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.base import CommError, Limit
from pliant.comm.gloo_private import gloo_group
from pliant.comm.liveness import HeartbeatMonitor
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.torch_private import backend_of, group_factory, liveness_store
from pliant.comm.verdict import Verdict

__all__ = ["comm_beside", "default_group", "new_comm", "self_comm"]

_CPU = torch.device("cpu")


def default_group() -> ProcessGroup:
    """Return torch's default group. Raises ValueError where there is none, as in a script that is started alone."""
    if not dist.is_initialized():
        raise ValueError(
            "this process is in no process group, and so has no ranks to exchange with; start it by torchrun, and call "
            "torch.distributed.init_process_group('gloo') first, or give group=."
        )
    return cast(ProcessGroup, dist.group.WORLD)


def new_comm(
    group: ProcessGroup,
    timeout_s: float,
    start_timeout_s: float | None = None,
    *,
    device: torch.device = _CPU,
    backend: str | None = None,
) -> ProcessGroupComm:
    """Return a comm over a new group of the same ranks, so that nobody else's collectives come between ours.

    Collective over `group`. In a world of threads the new group comes from that world.

    Args:
        group: Group with the ranks.
        timeout_s: Longest wait for one communication.
        start_timeout_s: The same until `with_timeout` is called, and for all ranks to come here; None: no other.
        device: Where the tensors to come lie.
        backend: Backend of the new group, such as "gloo"; None: that of `group`.

    Raises:
        CommError: Not all ranks have come in time, or one is lost.

    """
    limit = Limit(timeout_s=timeout_s if start_timeout_s is None else start_timeout_s)
    liveness = _liveness(group, timeout_s)

    def meet(name: str, ranks: Sequence[int]) -> None:
        if liveness is not None:
            liveness.meet(name, ranks, limit.timeout_s)

    make_group = group_factory(group, limit, meet, timeout_s, backend)
    try:
        new = make_group(None)
    except RuntimeError as error:
        if liveness is None:
            raise
        why = _why(liveness, group.rank(), limit.timeout_s)
        liveness.close()
        raise _start_failed(group, why, error) from error
    except BaseException:
        if liveness is not None:
            liveness.close()
        raise
    return ProcessGroupComm(new, limit=limit, make_group=make_group, owns_group=True, liveness=liveness, device=device)


def comm_beside(host: ProcessGroupComm, group: ProcessGroup, device: torch.device) -> ProcessGroupComm:
    """Return a comm of the same ranks over the backend of `group` for a device, beside one over Gloo.

    Both share timeouts and heartbeats. Collective over `group`.
    """
    return host.beside(lambda limit: group_factory(group, limit, backend=backend_of(group, device)), device)


def _liveness(group: ProcessGroup, connect_s: float) -> HeartbeatMonitor | None:
    try:
        store = liveness_store(group, connect_s) if group.size() > 1 else None
        return None if store is None else HeartbeatMonitor(store, group.rank(), group.size())
    except RuntimeError as error:
        why = Verdict(gone=(0,), by=group.rank()).sentence(group.rank(), connect_s)  # which hosts the store
        raise _start_failed(group, why, error) from error


def _why(liveness: HeartbeatMonitor, rank: int, limit_s: float) -> str:
    """Say why a start has come to nothing, and what to do."""
    verdict = liveness.verdict
    if verdict is None:
        if absent := liveness.absent():
            return (
                f"rank {', '.join(map(str, absent))} has not come within {limit_s:g}s; it may have failed, or start "
                "slowly: raise start_timeout_s"
            )
        verdict = liveness.blame("", 0.0, limit_s)
    if verdict.gone:
        return verdict.sentence(rank, limit_s)
    return (
        "all ranks have come, but not at the same time, or they do not reach each other; call relax() again on every "
        "rank that ends with an error, or raise start_timeout_s"
    )


def _start_failed(group: ProcessGroup, why: str, error: RuntimeError) -> CommError:
    cause = str(error).splitlines()[0]
    return CommError(f"rank {group.rank()}: {why}. Cause: {cause}", rank=group.rank(), op="start")


def self_comm() -> ProcessGroupComm:
    """Return a comm of one rank, which sends nothing."""

    def make_group(_: Sequence[int] | None) -> ProcessGroup:
        return gloo_group(HashStore(), 0, 1, "pliant-alone", 60.0, loopback=True)

    return ProcessGroupComm(make_group(None), limit=Limit(timeout_s=60.0), make_group=make_group, owns_group=True)
