"""Imported first by a copy of one of PyTorch's FSDP2 tests: the first forward pass of each sharded model relaxes it.

The plan is the exact one. The model's optimizers are those that hold one of its parameters; a model without any gets
one that changes nothing.
"""

import weakref
from typing import Any

import torch
import torch_on_cpu  # noqa: F401
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

import pliant

_optimizers: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()
_attached: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
_runs: list[Any] = []
_make = torch.optim.Optimizer.__init__


def _made(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    _make(self, *args, **kwargs)
    _optimizers.add(self)


def _before_forward(module: nn.Module, args: Any) -> None:
    if not isinstance(module, FSDPModule) or module in _attached:
        return
    inside = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    if not inside:
        return
    _attached.update(each for each in module.modules() if isinstance(each, FSDPModule))
    held = [o for o in _optimizers if inside & {id(p) for group in o.param_groups for p in group["params"]}]
    if not held:
        held = [torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0)]
    before = set(module._forward_pre_hooks)
    with _disable_current_modes():  # tests that count collectives are to count those of steps, not of the start
        _runs.append(pliant.relax(module, held if len(held) > 1 else held[0], "allreduce", timeout_s=300))
    for key, hook in list(module._forward_pre_hooks.items()):
        if key not in before:  # torch has made its list of hooks for this pass already
            hook(module, args)


torch.optim.Optimizer.__init__ = _made
register_module_forward_pre_hook(_before_forward)
