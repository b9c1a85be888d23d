"""Check that a value is equal on all ranks; on all of them it raises, or on none."""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

import torch

from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small

__all__ = ["require_all_same", "require_same", "telling_of_failure"]

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
    """Raise on every rank unless all have the same value: 8 bytes from each to each. Collective.

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
    require_all_same(comm, [(what, value, cure)], device, error=error)


def require_all_same(
    comm: Comm,
    values: Sequence[tuple[str, str | int | None, str]],
    device: torch.device | str = "cpu",
    *,
    error: type[ValueError] = ValueError,
) -> None:
    """Do what `require_same` does for several values at once, each with its name and advice. Collective."""
    mine = [_FAILED if value is None else _digest(str(value)) for _, value, _ in values]
    table: list[list[int]] = gather_small(comm, torch.tensor(mine, dtype=torch.int64, device=device)).tolist()
    for (what, _, cure), rows in zip(values, zip(*table, strict=True), strict=True):
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
