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

__all__ = ["Works", "all_gather", "all_reduce", "all_to_all", "broadcast", "exchange", "reduce", "reduce_scatter"]

Works = Sequence[dist.Work | None]

_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
# torch renames these two; the older names will go.
_all_gather_single: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009
_BYTES_ONLY = {torch.int16, torch.float8_e4m3fn, torch.float8_e5m2}
"""Dtypes that Gloo does not know; where bytes only move they are sent as uint8."""


def all_reduce(group: ProcessGroup, x: Tensor, op: ReduceOp, striping: Striping) -> Works:
    """Replace x by the sum, minimum or maximum over ranks, to the bit as in one piece."""
    is_exact = not (x.is_floating_point() or x.is_complex())
    parts = striping.of_sum(x, any_order=is_exact or (op == "sum" and group.size() <= 2))
    return [all_reduce_together(each, _OPS[op], group) for each in parts]


def all_gather(group: ProcessGroup, out: Tensor, x: Tensor, striping: Striping) -> Works:
    """Fill out with every rank's x."""
    count = striping.count(x.nbytes)
    if count == 1:
        return [_all_gather_single(_movable(out), _movable(x), group, async_op=True)]
    cut = [slices(each, count) for each in (*out.view(group.size(), -1), x)]
    return [dist.all_gather(outs, part, group, async_op=True) for *outs, part in zip(*cut, strict=True)]


def reduce_scatter(group: ProcessGroup, out: Tensor, x: Tensor, op: ReduceOp) -> Works:
    """Fill out with this rank's part of the reduced x, over one connection."""
    return [_reduce_scatter_single(out, x, _OPS[op], group, async_op=True)]


def all_to_all(group: ProcessGroup, out: Tensor, x: Tensor, striping: Striping) -> Works:
    """Send each rank its part of x; parts that are large enough go in slices, as messages of an exchange."""
    if striping.count(x.nbytes // group.size()) == 1:
        return [dist.all_to_all_single(_movable(out), _movable(x), group=group, async_op=True)]
    outs, parts = out.view(group.size(), -1), x.view(group.size(), -1)
    outs[group.rank()].copy_(parts[group.rank()])
    peers = [peer for peer in range(group.size()) if peer != group.rank()]
    return exchange(group, [(peer, parts[peer]) for peer in peers], [(peer, outs[peer]) for peer in peers], striping)


def broadcast(group: ProcessGroup, x: Tensor, root: int, striping: Striping) -> Works:
    """Replace x by root's."""
    count = striping.count(x.nbytes)
    parts = [_movable(x)] if count == 1 else slices(x, count)
    return [dist.broadcast(part, group=group, group_src=root, async_op=True) for part in parts]


def reduce(group: ProcessGroup, x: Tensor, root: int) -> Works:
    """Replace x on root by the sum over ranks, over one connection."""
    return [dist.reduce(x, group=group, group_dst=root, async_op=True)]


def exchange(group: ProcessGroup, sends: PeerTensors, receives: PeerTensors, striping: Striping) -> Works:
    """Post all receives, then all sends."""
    beside = next((x.device for _, x in (*sends, *receives) if is_accelerator(x.device)), None)
    if beside is not None and backend_of(group, beside) != "gloo":
        return batched(group, sends, receives)
    # Gloo starts each at once; without the batch's bookkeeping a message costs half as much.
    parts = ((peer, tag, part) for peer, x in receives for tag, part in striping.receives(peer, x))
    works = [group.recv([_movable(part)], peer, tag) for peer, tag, part in parts]
    parts = ((peer, tag, part) for peer, x in sends for tag, part in striping.sends(peer, x))
    return works + [group.send([_movable(part)], peer, tag) for peer, tag, part in parts]


def _movable(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dtype in _BYTES_ONLY else x
