"""Calls of torch.distributed that start a communication: in one piece, or in slices over several connections.

Only here are torch.distributed's collectives called. Each function returns the works that are under way; all of them
together are the communication.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.accelerator import is_accelerator
from pliant.comm.base import PeerTensors, ReduceOp
from pliant.comm.batched import batched
from pliant.comm.gloo_private import all_reduce_together
from pliant.comm.striping import Striping, slices
from pliant.comm.torch_private import backend_of

__all__ = [
    "Groups",
    "Works",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "exchange",
    "reduce",
    "reduce_scatter",
]

Groups = Sequence[ProcessGroup]
"""A group, and groups of the same ranks with one more connection each."""
Works = Sequence[dist.Work | None]

_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
# torch renames these two; the older names will go.
_all_gather_single: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009
_BYTES_ONLY = {torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2}
"""Dtypes that Gloo does not know; where bytes only move they are sent as uint8."""


def all_reduce(groups: Groups, x: Tensor, op: ReduceOp, striping: Striping) -> Works:
    """Replace x by the sum, minimum or maximum over ranks, to the bit as in one piece."""
    is_exact = not (x.is_floating_point() or x.is_complex())
    parts = striping.of_sum(x, any_order=is_exact or (op == "sum" and groups[0].size() <= 2))
    return [all_reduce_together(each, _OPS[op], groups[k]) for k, each in enumerate(parts)]


def all_gather(groups: Groups, out: Tensor, x: Tensor, striping: Striping) -> Works:
    """Fill out with every rank's x."""
    count = striping.count(x.nbytes)
    if count == 1:
        return [_all_gather_single(_movable(out), _movable(x), groups[0], async_op=True)]
    cut = list(zip(*(slices(each, count) for each in (*out.view(groups[0].size(), -1), x)), strict=True))
    return [dist.all_gather(outs, part, groups[k], async_op=True) for k, (*outs, part) in enumerate(cut)]


def reduce_scatter(group: ProcessGroup, out: Tensor, x: Tensor, op: ReduceOp) -> Works:
    """Fill out with this rank's part of the reduced x, over one connection."""
    return [_reduce_scatter_single(out, x, _OPS[op], group, async_op=True)]


def all_to_all(groups: Groups, out: Tensor, x: Tensor, striping: Striping) -> Works:
    """Send each rank its part of x; parts that are large enough go in slices, as messages of an exchange."""
    rank, size = groups[0].rank(), groups[0].size()
    if striping.count(x.nbytes // size) == 1:
        return [dist.all_to_all_single(_movable(out), _movable(x), group=groups[0], async_op=True)]
    outs, parts = out.view(size, -1), x.view(size, -1)
    outs[rank].copy_(parts[rank])
    peers = [peer for peer in range(size) if peer != rank]
    sends, receives = ([(peer, each[peer]) for peer in peers] for each in (parts, outs))
    return exchange(groups, sends, receives, striping, 0)


def broadcast(groups: Groups, x: Tensor, root: int, striping: Striping) -> Works:
    """Replace x by root's."""
    count = striping.count(x.nbytes)
    parts = [_movable(x)] if count == 1 else slices(x, count)
    return [dist.broadcast(part, group=groups[k], group_src=root, async_op=True) for k, part in enumerate(parts)]


def reduce(group: ProcessGroup, x: Tensor, root: int) -> Works:
    """Replace x on root by the sum over ranks, over one connection."""
    return [dist.reduce(x, group=group, group_dst=root, async_op=True)]


def exchange(
    groups: Groups, sends: PeerTensors, receives: PeerTensors, striping: Striping, turn: int, tag: int = 0
) -> Works:
    """Post all receives, then all sends."""
    beside = next((x.device for _, x in (*sends, *receives) if is_accelerator(x.device)), None)
    if beside is not None and backend_of(groups[0], beside) != "gloo":
        return batched(groups[0], sends, receives)
    # Gloo starts each at once; without the batch's bookkeeping a message costs half as much.
    parts = ((peer, k, part) for peer, x in receives for k, part in striping.placed(x, turn))
    works = [groups[k].recv([_movable(part)], peer, tag) for peer, k, part in parts]
    parts = ((peer, k, part) for peer, x in sends for k, part in striping.placed(x, turn))
    return works + [groups[k].send([_movable(part)], peer, tag) for peer, k, part in parts]


def _movable(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8) if x.dtype in _BYTES_ONLY else x
