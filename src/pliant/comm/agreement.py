"""Check that a value is equal on all ranks; on all of them it raises, or on none."""

import hashlib

import torch

from pliant.comm.base import Comm

__all__ = ["require_same"]

_FAILED = -1


def require_same(
    comm: Comm,
    what: str,
    value: str | int | None,
    device: torch.device | str = "cpu",
    *,
    cure: str = "give every rank the same",
    error: type[ValueError] = ValueError,
) -> None:
    """Raise on every rank unless all have the same value: one all-gather of 8 bytes each. Collective.

    Args:
        comm: Ranks that must agree.
        what: Name of the value in the message, such as "the plan".
        value: A text or a number, which is compared by a hash; None on a rank that has failed to make one.
        device: Device of the comm's tensors.
        cure: Advice in the message.
        error: Type of the error.

    Raises:
        ValueError: On every rank, or `error`: some rank has another value than rank 0, or none.

    """
    mine = torch.tensor([_FAILED if value is None else _digest(str(value))], dtype=torch.int64, device=device)  # (1,)
    table = torch.empty(comm.size, dtype=torch.int64, device=device)  # (size,)
    comm.all_gather(table, mine).wait()
    rows: list[int] = table.tolist()
    odd = [rank for rank, digest in enumerate(rows) if digest != rows[0] or digest == _FAILED]
    if odd:
        ranks = ", ".join(map(str, odd))
        raise error(f"{what} of ranks {ranks} differs from that of rank 0 (this is rank {comm.rank}); {cure}.")


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
