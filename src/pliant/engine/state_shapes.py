"""States that optimizers will keep of their parameters, known before the first step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.optimizer_state import state_after_first_step
from pliant.spec import Exchange, averaged_states

__all__ = ["StateShapes", "state_shapes"]

StateShapes = Mapping[str, Mapping[str, Tensor]]
"""Parameter -> state -> tensor without content, of the type and shape that its optimizer will keep."""

_COUNTER = "step"
"""Key under which torch's optimizers count steps, which have no mean."""


def state_shapes(store: AlgorithmState, optimizer: Optimizer, steppers: Mapping[int, Optimizer]) -> StateShapes:
    """Return what optimizers will keep of each parameter whose node averages some of it. No communication.

    Args:
        store: Nodes of all parameters.
        optimizer: All optimizers as one, with this rank's shards in place of divided parameters.
        steppers: Parameter's id -> the optimizer that steps it.

    Raises:
        ValueError: A node averages what no optimizer keeps of its parameters, or what has no mean.

    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    known: dict[Any, Mapping[str, Tensor]] = {}
    found: dict[str, Mapping[str, Tensor]] = {}
    for name, node in store.nodes.items():
        if averaged_states(node):
            p = store.parameters[name]
            stepper, group = steppers[id(p)], groups[id(p)]
            alike = id(stepper), id(group), tuple(p.shape), p.dtype, node
            if alike not in known:
                known[alike] = _kept(stepper, group, p, node)
            found[name] = known[alike]
    for node in dict.fromkeys(node for node in store.nodes.values() if averaged_states(node)):
        mine = {n: found[n] for n, own in store.nodes.items() if own == node}
        names = {type(steppers[id(store.parameters[n])]).__name__ for n in mine}
        _require_kept(node, " and ".join(sorted(names)), sorted({key for kept in mine.values() for key in kept}))
    return found


def _kept(stepper: Optimizer, group: Mapping[str, Any], parameter: Tensor, node: Exchange) -> Mapping[str, Tensor]:
    state = state_after_first_step(stepper, group, parameter)
    kept = {k: v for k, v in state.items() if isinstance(v, Tensor) and k != _COUNTER}
    for name in (each.name for each in averaged_states(node)):
        if name in kept and not _has_mean(kept[name]):
            raise ValueError(
                f"the plan averages {name!r} of the optimizer, but {type(stepper).__name__} keeps it as "
                f"{type(kept[name]).__name__} of {kept[name].dtype}, whose codes have no mean; use an optimizer with "
                "floating-point states, or leave states out of the plan."
            )
    return {k: torch.empty_like(v, device="meta") for k, v in kept.items() if _has_mean(v)}


def _require_kept(node: Exchange, optimizer: str, kept: list[str]) -> None:
    for name in (each.name for each in averaged_states(node)):
        if name not in kept:
            raise ValueError(
                f"the plan averages {name!r} of the optimizer, but {optimizer} keeps {', '.join(kept) or 'nothing'} of "
                "these parameters; name in the plan's states what it keeps, or leave them out."
            )


def _has_mean(value: Tensor) -> bool:
    """Say whether a tensor holds plain numbers; quantized states are of whole numbers, or of classes of their own."""
    return type(value) in (Tensor, nn.Parameter) and (value.is_floating_point() or value.is_complex())
