"""Comms over groups that nobody else uses."""

from collections.abc import Sequence

from torch.distributed import HashStore, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.base import CommError, Limit
from pliant.comm.liveness import Liveness
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.torch_private import gloo_group, liveness_store, maker_of

__all__ = ["alone", "own_group"]


def own_group(group: ProcessGroup, timeout_s: float, start_timeout_s: float | None = None) -> ProcessGroupComm:
    """Return a comm over a new group of the same ranks, so that nobody else's collectives come between ours.

    Collective over `group`. In a world of threads the new group comes from that world.

    Args:
        group: Whose ranks.
        timeout_s: Longest wait for one communication.
        start_timeout_s: The same until `started` is called, and for all ranks to come here; None: no other.

    Raises:
        CommError: Not all ranks have come in time.

    """
    limit = Limit(timeout_s=timeout_s if start_timeout_s is None else start_timeout_s)
    make_group = maker_of(group, limit)
    store = liveness_store(group) if group.size() > 1 else None
    liveness = Liveness(store, group.rank(), group.size()) if store is not None else None
    try:
        new = make_group(None)
    except BaseException as error:
        absent = () if liveness is None else liveness.absent()
        if liveness is not None:
            liveness.close()
        if not isinstance(error, RuntimeError) or liveness is None:
            raise
        why = (
            "all ranks have come, but not at the same time, or they do not reach each other; call relax() again on "
            "every rank that ends with an error, or raise start_timeout_s"
        )
        if absent:
            why = (
                f"rank {', '.join(map(str, absent))} has not come within {limit.timeout_s:g}s; it may have failed, or "
                "start slowly: raise start_timeout_s"
            )
        text = f"rank {group.rank()}: {why}. Cause: {str(error).splitlines()[0]}"
        raise CommError(text, rank=group.rank(), op="start") from error
    return ProcessGroupComm(new, limit=limit, make_group=make_group, owns_group=True, liveness=liveness)


def alone() -> ProcessGroupComm:
    """Return a comm of one rank, which talks to nobody."""

    def make_group(_: Sequence[int] | None) -> ProcessGroup:
        return gloo_group(HashStore(), 0, 1, "pliant-alone", 60.0, loopback=True)

    return ProcessGroupComm(make_group(None), limit=Limit(timeout_s=60.0), make_group=make_group, owns_group=True)
