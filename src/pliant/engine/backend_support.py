"""Which plans a process group's backend can carry."""

from typing import Any

import torch
from torch.distributed import ProcessGroup

from pliant.spec import BlockSparse, CompressedMomentum, Exchange, ScatterGather, Sharded, SyncPlan

__all__ = ["backend_of", "require_supported"]


def backend_of(group: ProcessGroup, device: torch.device) -> str:
    """Return the name of the backend that moves tensors of a device: a group may have one for each kind."""
    moves: Any = group._get_backend(device)  # pyright: ignore
    return str(moves.name()).lower()


def require_supported(plan: SyncPlan, group: ProcessGroup, device: torch.device) -> None:
    """Raise ValueError for a plan whose exchange would wait for ever over this group. No communication.

    NCCL carries out what a rank asks for in one order, and some exchanges ask for what others send before they send.
    """
    if group.size() == 1 or backend_of(group, device) != "nccl":
        return
    for rule in plan.rules:
        if _receives_first(rule.exchange):
            raise ValueError(
                f"the plan exchanges {rule.exchange}, which receives from all ranks at once while it sends, but the "
                f"model is on {device}, whose backend NCCL does one thing after another and would wait for ever; "
                "choose a plan that NCCL carries, such as allreduce, bf16, powersgd or local_sgd, or train over Gloo."
            )


def _receives_first(node: Exchange) -> bool:
    return any(
        inner.has_owners
        or isinstance(inner, (ScatterGather, CompressedMomentum))
        or (isinstance(inner, BlockSparse) and inner.selection.is_coded)
        or (isinstance(inner, Sharded) and _codes_shards(inner))
        for inner in node.walk()
    )


def _codes_shards(node: Sharded) -> bool:
    return any(each is not None and each.codec is not None for each in (node.gradients, node.weights))
