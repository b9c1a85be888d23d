"""Comparison of ranks: numbers gathered from all, and errors raised on all."""

import zlib
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch

from pliant.comm.base import Comm, CommError
from pliant.comm.small_gather import gather_small
from pliant.comm.text_broadcast import broadcast_text

__all__ = ["describe_failure", "gather_numbers", "majority_of", "name_ranks", "raise_together", "require_same_names"]


def gather_numbers(numbers: Sequence[int], comm: Comm, device: torch.device) -> list[list[int]]:
    """Return every rank's numbers, as many on each, in the order of ranks. Collective; 8 bytes for each number."""
    return gather_small(comm, torch.tensor(list(numbers), dtype=torch.int64, device=device)).tolist()


def raise_together(error: Exception | None, comm: Comm, device: torch.device, *, kind: type[Exception]) -> None:
    """Raise on all ranks if any has an error: its own, or one of `kind` that quotes the first one. Collective.

    A rank that went on alone would wait for one that has raised.
    """
    failed = [rank for rank, (bad,) in enumerate(gather_numbers([int(error is not None)], comm, device)) if bad]
    if not failed:
        return
    text = broadcast_text(str(error) if error is not None else "", comm, failed[0], device=device)
    if error is not None:
        raise error
    raise kind(f"{name_ranks(failed)} could not, and so no rank does. Rank {failed[0]}: {text}")


@contextmanager
def describe_failure(what: str) -> Generator[None]:
    """Add the purpose of a communication to its error, such as "exchanging ... in step 3"."""
    try:
        yield
    except CommError as error:
        raise CommError(f"while {what}: {error}", rank=error.rank, op=error.op, lost=error.lost) from error


def majority_of(column: Sequence[int]) -> int:
    """Return the value that most ranks have."""
    return Counter(column).most_common(1)[0][0]


def name_ranks(ranks: Sequence[int]) -> str:
    """Name one or several ranks."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def require_same_names(names: Sequence[str], comm: Comm, device: torch.device) -> None:
    """Raise ValueError on all ranks if they hold different parameters, before a collective of unequal sizes blocks."""
    rows = gather_numbers([zlib.crc32("\n".join(names).encode())], comm, device)
    if odd := [rank for rank, row in enumerate(rows) if row != rows[0]]:
        raise ValueError(
            f"ranks {', '.join(map(str, odd))} observed other parameters than rank 0; build one model on all ranks."
        )
