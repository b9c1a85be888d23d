"""Models that a script has wrapped for data-parallel training, found where they are."""

import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import compress
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
    sharded: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    bases = [DistributedDataParallel] if sharded is None else [DistributedDataParallel, sharded]
    kinds = {id(kind) for base in bases for kind in _subclasses(base)}
    stepped = parameters_of(optimizers)
    # By their types, not by isinstance: some objects answer it by doing something. There may be a million of them.
    objects = gc.get_objects()
    models: list[Any] = [*compress(objects, map(kinds.__contains__, map(id, map(type, objects))))]
    return [
        each
        for each in models
        if (isinstance(each, DistributedDataParallel) or is_sharded_root(each))
        and not stepped.isdisjoint(id(p) for p in each.parameters())
    ]


def _subclasses(base: type) -> Iterator[type]:
    """Yield a class and all that are derived from it."""
    yield base
    for kind in type.__subclasses__(base):
        yield from _subclasses(kind)
