"""Gather of few numbers from all ranks, where round trips are all that counts."""

import torch
from torch import Tensor

from pliant.comm.base import Comm
from pliant.spec.slices import MOST_STRAIGHT_PEERS

__all__ = ["gather_small"]


def gather_small(comm: Comm, mine: Tensor) -> Tensor:
    """Return every rank's numbers, (size, numel) from (numel,), in the order of ranks. Collective.

    Gloo's all-gather passes them on around a ring, hop after hop. In an all-to-all as many messages of as many bytes
    are under way at once, which takes one round trip. Under NCCL, and among many ranks, it is an all-gather.
    """
    table = torch.empty(comm.size * mine.numel(), dtype=mine.dtype, device=mine.device)
    if comm.is_in_order or comm.size > MOST_STRAIGHT_PEERS:
        comm.all_gather(table, mine).wait()
    else:
        comm.all_to_all(table, mine.repeat(comm.size)).wait()
    return table.view(comm.size, -1)
