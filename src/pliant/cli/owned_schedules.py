"""`pliant schedule --owned`: schedules whose sums end on the ranks that own parts of a vector."""

from typing import Annotated, TypeAlias

import typer

from pliant.netmodel import Overheads
from pliant.schedules import Candidate, Collective, lower_bound_s
from pliant.schedules.owned import owner_candidates, owner_task
from pliant.spec import Topology

__all__ = ["OwnedOption", "owned_bytes", "owned_search", "require_whole"]

OwnedOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help="What each rank owns, for sharded_optimizer: 'equal', or a share for each, such as 2,1,1. All hold all; "
        "sums end on owners, who send as much back later."
    ),
]


def require_whole(text: str, holds: bool) -> None:
    """Raise ValueError for parts of vectors that ranks do not hold whole."""
    if not holds:
        raise ValueError(
            f"--owned is {text!r}, and parts that are owned are of vectors that all ranks hold whole; leave out "
            "--density, --bitmap and --improve."
        )


def owned_bytes(text: str, num_bytes: int, num_ranks: int) -> list[int]:
    """Return how much of a vector each rank owns, in multiples of 4 bytes. Raises ValueError for other shares."""
    try:
        shares = [1.0] * num_ranks if text == "equal" else [float(share) for share in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != num_ranks or not all(0 <= share < float("inf") for share in shares) or not sum(shares):
        raise ValueError(
            f"--owned is {text!r}, but there are {num_ranks} ranks; write 'equal', or one share for each, such as "
            f"{','.join('1' * num_ranks)}."
        )
    owned = [4 * round(num_bytes * share / sum(shares) / 4) for share in shares]
    if not any(owned):
        raise ValueError(f"{num_bytes} bytes have not one element for any of {num_ranks} owners; give a larger --size.")
    return owned


def owned_search(
    owned: list[int], topology: Topology, overheads: Overheads
) -> tuple[Collective, list[Candidate], float]:
    """Return the task, verified candidates for both ways, the fastest first, and a time that none beats."""
    up, down = owner_task(owned, "reduce"), owner_task(owned, "copy")
    both = Collective(num_ranks=up.num_ranks, block_bytes=up.block_bytes, holders=up.holders, needers=down.needers)
    bound_s = sum(lower_bound_s(half, topology, overheads) for half in (up, down))
    return both, owner_candidates(owned, owned, topology, overheads), bound_s
