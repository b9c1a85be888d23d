"""Exact reduce-scatter and all-gather of parts, pairwise: Gloo's own reduce-scatter sends as much as an all-reduce."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.collectives.scratch import Scratch
from pliant.comm.base import Comm, PeerTensors
from pliant.layouts.shards import ALONE_BYTES

__all__ = ["gather_parts", "mean_of_parts", "rotated_peers", "swap"]


def rotated_peers(comm: Comm) -> list[int]:
    """Return the other ranks, so that nobody's first is another's: flows that meet at a link overflow its queue."""
    return [(comm.rank + k) % comm.size for k in range(1, comm.size)]


def mean_of_parts(parts: Sequence[Tensor], out: Tensor, comm: Comm, scratch: Scratch) -> None:
    """Fill out, (numel,), with the mean over ranks of the part that this rank owns.

    Every rank sends part p to rank p and adds up what comes, in the order of ranks. Parts travel in the dtype that they
    have; sums are taken in float32, or in float64 where that is what is summed. Bytes: all other parts out, (size-1)
    times the own one in.

    Args:
        parts: Vectors, one for each rank, of any lengths and one floating dtype, contiguous; left as they are.
        out: Output, of the length of this rank's part, any floating dtype, contiguous.
        comm: Ranks that average; rank p owns part p.
        scratch: Memory for the parts that are received.

    """
    mine = parts[comm.rank]
    inbox = scratch.take("inbox", (comm.size, mine.numel()), mine.dtype)
    sends = [(to, parts[to]) for to in rotated_peers(comm)]
    swap(comm, sends, [(of, inbox[of]) for of in rotated_peers(comm)], max(part.nbytes for part in parts))
    wide = torch.float64 if mine.dtype == torch.float64 else torch.float32
    total = out if out.dtype == wide else scratch.take("total", (mine.numel(),), wide)
    for rank in range(comm.size):
        row = mine if rank == comm.rank else inbox[rank]
        if rank == 0:
            total.copy_(row)
        else:
            total.add_(row)
    total.div_(comm.size)
    if total is not out:
        out.copy_(total)


def gather_parts(parts: Sequence[Tensor], comm: Comm) -> None:
    """Fill parts, one vector for each rank, with every rank's own, which is there on that rank.

    Bytes: (size-1) times the own part out, all other parts in.
    """
    mine, peers = parts[comm.rank], rotated_peers(comm)
    largest_bytes = max(part.nbytes for part in parts)
    swap(comm, [(to, mine) for to in peers], [(of, parts[of]) for of in peers], largest_bytes)


def swap(comm: Comm, sends: PeerTensors, receives: PeerTensors, largest_bytes: int) -> None:
    """Exchange messages with peers, all at once if they are small, else with one peer after another.

    Empty ones are left out.

    Args:
        comm: Ranks that exchange.
        sends: Messages in the order of `rotated_peers`.
        receives: Tensors that are filled, likewise.
        largest_bytes: Size of the largest message of all ranks, known to all.

    """
    leaving, coming = ([each for each in given if each[1].numel()] for given in (sends, receives))
    peers = rotated_peers(comm)
    rounds = [
        ([each for each in leaving if each[0] == to], [each for each in coming if each[0] == of])
        for to, of in zip(peers, reversed(peers), strict=True)
    ]
    for out, into in rounds if largest_bytes >= ALONE_BYTES else [(leaving, coming)]:
        comm.exchange(out, into).wait()
