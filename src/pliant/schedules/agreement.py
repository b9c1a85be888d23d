"""The same on all ranks, or an error on all: for what must never be carried out by halves."""

import hashlib

import torch

from pliant.comm.base import Comm
from pliant.schedules.verify import ScheduleError

__all__ = ["require_agreement"]


def require_agreement(text: str, what: str, comm: Comm, device: torch.device) -> None:
    """Compare a text over ranks: one all-gather of 8 bytes each.

    Args:
        text: What must be equal.
        what: Its name in the sentence, such as 'another schedule'.
        comm: Who must agree.
        device: Where the comm's tensors lie.

    Raises:
        ScheduleError: On every rank, if any two differ.

    """
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    mine = torch.tensor([digest], device=device)
    everybody = torch.empty(comm.size, dtype=mine.dtype, device=device)
    comm.all_gather(everybody, mine).wait()
    others = [rank for rank, theirs in enumerate(everybody.tolist()) if theirs != digest]
    if others:
        raise ScheduleError(
            f"rank {comm.rank} and the ranks {others} have {what}; make it from the same data on all ranks, or "
            "broadcast it."
        )
