"""State of an optimizer, parameter by parameter: saved for this rank, and put back."""

import copy
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.engine.joint_optimizer import JointOptimizer
from pliant.engine.shard_optimizer import ShardOptimizer

__all__ = [
    "Cuts",
    "check_optimizer_state",
    "clone_optimizer",
    "load_optimizer_state",
    "optimizer_state",
    "parameter_names",
    "state_after_first_step",
]


def parameter_names(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return names of all parameters that an optimizer steps: the model's, or else their index in the optimizer."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return {names.get(id(p), f"parameter {k} of the optimizer"): p for k, p in enumerate(held)}


class Cuts(Protocol):
    """Protocol of what a rank owns of a parameter: it cuts a state of the whole down to that."""

    def cut(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the owned part of a parameter's state."""
        ...


def optimizer_state(
    optimizer: Optimizer,
    named: Mapping[str, Tensor],
    kept: Collection[str],
    owned: Mapping[str, Cuts] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return copies of the optimizer's state of given parameters.

    Shapes depend on the model, the optimizer and the owners alone: zeros stand for state that is not there yet, and
    "held" is then 0. So a new run gives a checkpoint's loader a place for everything.

    Args:
        optimizer: The optimizer.
        named: Name -> parameter, of all that count.
        kept: Names of those whose state is returned.
        owned: Name -> what this rank owns of it, where a parameter may be cut.

    Returns:
        {"held": int64 (num_parameters,), 1 where the optimizer holds something, "state": {parameter: {key: value}}}.

    """
    state = {
        name: _copy(_cut(name, optimizer.state.get(p) or _first_state(optimizer, p), owned))
        for name, p in named.items()
        if name in kept
    }
    held = torch.tensor([int(bool(optimizer.state.get(p))) for p in named.values()], dtype=torch.int64)
    return {"held": held, "state": {name: own for name, own in state.items() if own}}


def check_optimizer_state(
    saved: Mapping[str, Any],
    optimizer: Optimizer,
    named: Mapping[str, Tensor],
    kept: Collection[str],
    owned: Mapping[str, Cuts] = MappingProxyType({}),
) -> None:
    """Raise ValueError if what was saved is not the state of such an optimizer, or lacks what it held."""
    wanted = optimizer_state(optimizer, named, kept, owned)["state"]
    for name in owned.keys() & named.keys() & set(kept):  # a loaded optimizer may hold another rank's part
        wanted[name] = _cut(name, _first_state(optimizer, named[name]), owned)
    for (name, parameter), held in zip(named.items(), saved["held"].tolist(), strict=True):
        if not held:
            continue
        if name not in kept:
            if not optimizer.state.get(parameter):
                raise ValueError(
                    f"the optimizer of the saved run held a state for {name}, but this one holds none, and under this "
                    "plan it is saved once for all ranks; load the optimizer before the run, with set_state_dict() or "
                    "optimizer.load_state_dict()."
                )
            continue
        own = _cut(name, cast(Mapping[str, Any], saved["state"].get(name, {})), owned)
        if not own:
            raise ValueError(
                f"the state holds nothing of this rank's optimizer for {name}, which had gathered something when it "
                "was saved; save and load run.state_dict() whole."
            )
        if wanted.get(name) and (odd := _first_mismatch(own, wanted[name])):
            raise ValueError(
                f"the state holds another optimizer's {odd} for {name}; give relax() an optimizer of the kind that the "
                "saved run had."
            )


@torch.no_grad()
def load_optimizer_state(
    saved: Mapping[str, Any],
    optimizer: Optimizer,
    named: Mapping[str, Tensor],
    kept: Collection[str],
    owned: Mapping[str, Cuts] = MappingProxyType({}),
) -> None:
    """Put back a state that `check_optimizer_state` has accepted; parameters without one then lose theirs."""
    for (name, parameter), held in zip(named.items(), saved["held"].tolist(), strict=True):
        if not held:
            optimizer.state.pop(parameter, None)
        elif name in kept:
            now = optimizer.state.get(parameter, {})
            own = _copy(_cut(name, saved["state"][name], owned))
            optimizer.state[parameter] = {key: _place(value, now.get(key), parameter) for key, value in own.items()}


def clone_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer with the same settings, without hooks and without a scheduler's counters."""
    twin = copy.copy(optimizer)  # torch copies state and groups alone
    own = {k: v for k, v in optimizer.__dict__.items() if k not in twin.__dict__ and k != "step"}
    twin.__dict__.update(own)
    return twin


def _first_state(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """Return zeros with the shapes of the optimizer's state of a parameter; nothing if they are not known."""
    members = optimizer.members if isinstance(optimizer, JointOptimizer | ShardOptimizer) else (optimizer,)
    held = optimizer.parameter_of(parameter) if isinstance(optimizer, ShardOptimizer) else parameter
    groups = [(member, group) for member in members for group in member.param_groups]
    stepper, group = next((m, g) for m, g in groups if any(p is held for p in g["params"]))
    return state_after_first_step(stepper, group, parameter)


def state_after_first_step(stepper: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> Mapping[str, Any]:
    """Return zeros with the shapes of the state that an optimizer will keep of a parameter; nothing if not known.

    Args:
        stepper: The optimizer, which is left as it is.
        group: Settings of the parameter's group.
        parameter: The parameter, or this rank's shard of it.

    """
    like = parameter.detach().clone().requires_grad_()
    like.grad = torch.zeros_like(like)
    twin = clone_optimizer(stepper)
    twin.state = type(stepper.state)(dict)
    twin.param_groups = [{**group, "params": [like]}]
    try:
        twin.step()
    except Exception:  # noqa: BLE001  an optimizer that needs a closure, or all parameters at once
        return {}
    found = twin.state.get(like, {})
    return {key: torch.zeros_like(value) if isinstance(value, Tensor) else value for key, value in found.items()}


def _cut(name: str, state: Mapping[str, Any], owned: Mapping[str, Cuts]) -> Mapping[str, Any]:
    return owned[name].cut(state) if name in owned else state


def _first_mismatch(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the first key whose value was not made by such an optimizer; empty if there is none."""
    for key in [*saved, *wanted]:
        if key not in saved or key not in wanted:
            return repr(key)
        a, b = saved[key], wanted[key]
        if isinstance(a, Tensor) != isinstance(b, Tensor):
            return repr(key)
        if isinstance(a, Tensor) and (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{key!r} of shape {tuple(a.shape)} and type {a.dtype}"
    return ""


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in state.items()}


def _place(value: Any, now: Any, parameter: Tensor) -> Any:
    """Move a tensor to the device of the optimizer's, or, with one number for each element, to the parameter's."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(now, Tensor):
        return value.to(now.device)
    return value.to(parameter.device) if value.dim() else value
