"""Comparison of ranks: numbers side by side, and errors that all raise alike."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch

from pliant.comm.base import Comm, CommError
from pliant.comm.text_broadcast import broadcast_text

__all__ = ["gather_numbers", "majority_of", "describe_failure", "raise_together", "name_ranks"]


def gather_numbers(numbers: Sequence[int], comm: Comm, device: torch.device) -> list[list[int]]:
    """Return every rank's numbers, as many on each, in the order of ranks. Collective; 8 bytes for each number."""
    mine = torch.tensor(list(numbers), dtype=torch.int64, device=device)
    table = torch.empty(comm.size * mine.numel(), dtype=torch.int64, device=device)
    comm.all_gather(table, mine).wait()
    return table.view(comm.size, -1).tolist()


def raise_together(error: Exception | None, comm: Comm, device: torch.device, *, kind: type[Exception]) -> None:
    """Raise on all ranks if any has an error: its own, or one of `kind` that quotes the first that has. Collective.

    Ranks that go on alone would wait for one that has raised.
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
    """Add to a communication that fails what it was for: "exchanging ... in step 3"."""
    try:
        yield
    except CommError as error:
        raise CommError(f"while {what}: {error}", rank=error.rank, op=error.op, lost=error.lost) from error


def majority_of(column: Sequence[int]) -> int:
    """Return what most ranks have."""
    return Counter(column).most_common(1)[0][0]


def name_ranks(ranks: Sequence[int]) -> str:
    """Name one or several ranks."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
