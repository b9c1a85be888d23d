"""Plans that a process group's backend can carry."""

import torch
from torch.distributed import ProcessGroup

from pliant.comm.torch_private import backend_of
from pliant.spec import SyncPlan

__all__ = ["require_supported"]


def require_supported(plan: SyncPlan, group: ProcessGroup, device: torch.device) -> None:
    """Raise ValueError for a plan whose exchange would deadlock over this group. No communication.

    NCCL carries out what a rank asks for in one order, and servers at a free pace listen to all ranks at once.
    """
    if group.size() == 1 or backend_of(group, device) != "nccl":
        return
    for rule in plan.rules:
        if any(node.has_owners and node.staleness_bound is not None for node in rule.exchange.walk()):
            raise ValueError(
                f"the plan exchanges {rule.exchange}, whose owners listen to all ranks at once, but the model is on "
                f"{device}, whose backend NCCL does one thing after another and would wait for ever; choose a plan in "
                "which ranks go in step, such as owner or local_sgd, or train over Gloo."
            )
