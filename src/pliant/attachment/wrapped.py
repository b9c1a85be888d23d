"""Models that a script has wrapped for data-parallel training, found where they are."""

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

__all__ = ["WrappedModels", "parameters_of", "wrapped_models"]


class WrappedModels:
    """Wrapped models of a process: those in DistributedDataParallel are noted when they are made."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[DistributedDataParallel]] = []
        register_module_module_registration_hook(self._note)

    def of(self, optimizers: Sequence[Optimizer]) -> list[nn.Module]:
        """Return what `wrapped_models` does, without a look at all objects where those noted hold all parameters."""
        noted = (model for made in self._made if (model := made()) is not None)
        models, stepped = _stepped(noted, optimizers), parameters_of(optimizers)
        held = {id(p) for model in models for p in model.parameters()}
        return models if stepped <= held else wrapped_models(optimizers)

    def _note(self, module: nn.Module, *_: Any) -> None:
        if isinstance(module, DistributedDataParallel):
            self._made.append(weakref.ref(module))


def parameters_of(optimizers: Sequence[Optimizer]) -> set[int]:
    """Return the ids of all parameters that optimizers hold."""
    return {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}


def wrapped_models(optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """Return the models in DistributedDataParallel, or under fully_shard or replicate, that optimizers step.

    They are looked for among all objects of the process, once: so neither torch nor the script is changed. A sharded
    model counts by its outermost module, which is known after a forward pass.
    """
    from pliant.comm.fsdp_private import is_sharded_root  # here, since every process of a script imports this file

    sharded: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    bases = [DistributedDataParallel] if sharded is None else [DistributedDataParallel, sharded]
    kinds = {id(kind) for base in bases for kind in _subclasses(base)}
    # By their types, not by isinstance: some objects answer it by doing something. There may be a million of them.
    objects = gc.get_objects()
    models: list[Any] = [*compress(objects, map(kinds.__contains__, map(id, map(type, objects))))]
    wrapped = (each for each in models if isinstance(each, DistributedDataParallel) or is_sharded_root(each))
    return _stepped(wrapped, optimizers)


def _stepped(models: Iterable[nn.Module], optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    stepped = parameters_of(optimizers)
    return [each for each in models if not stepped.isdisjoint(id(p) for p in each.parameters())]


def _subclasses(base: type) -> Iterator[type]:
    """Yield a class and all that are derived from it."""
    yield base
    for kind in type.__subclasses__(base):
        yield from _subclasses(kind)
