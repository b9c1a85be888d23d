"""Models that a script has wrapped for data-parallel training, found where they are."""

import gc
import sys
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.comm.fsdp_private import is_sharded_root

__all__ = ["parameters_of", "wrapped_models"]


def parameters_of(optimizers: Sequence[Optimizer]) -> set[int]:
    """Return the ids of all parameters that optimizers hold."""
    return {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}


def wrapped_models(optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """Return the models in DistributedDataParallel, or under fully_shard or replicate, that optimizers step.

    They are looked for among all objects of the process, once: so neither torch nor the script is changed. A sharded
    model counts by its outermost module, which is known after a forward pass.
    """
    sharded: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    stepped = parameters_of(optimizers)
    found: list[nn.Module] = []
    for each in gc.get_objects():
        kind = type(each)  # not isinstance: some objects answer it by doing something
        is_model = issubclass(kind, DistributedDataParallel) or (issubclass(kind, sharded) and is_sharded_root(each))
        if is_model and not stepped.isdisjoint(id(p) for p in each.parameters()):
            found.append(each)
    return found
