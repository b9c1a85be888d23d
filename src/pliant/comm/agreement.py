"""Check that a value is equal on all ranks; on all of them it raises, or on none."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager, suppress

import torch

from pliant.comm.base import Comm

__all__ = ["require_same", "telling_of_failure"]

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


@contextmanager
def telling_of_failure(comm: Comm, what: str, device: torch.device | str = "cpu") -> Generator[None]:
    """Take part in the `require_same` that follows the block, if the block raises: so the others do not wait for it."""
    try:
        yield
    except Exception:
        with suppress(ValueError):  # that ranks differ is what the others shall hear
            require_same(comm, what, None, device)
        raise


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
