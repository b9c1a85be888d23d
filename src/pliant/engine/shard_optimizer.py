"""An optimizer of a sharded model, as it looks for this rank's parts of the parameters."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pliant.engine.joint_optimizer import JointOptimizer

__all__ = ["ShardOptimizer", "as_local", "load_local_state", "local_state"]


class _LocalStates(MutableMapping[Tensor, Any]):
    """States of shards: the local parts of what the optimizer has gathered for their parameters."""

    def __init__(self, optimizer: Optimizer, of_shard: Mapping[int, Any]) -> None:
        self._optimizer, self._of_shard = optimizer, of_shard

    def __getitem__(self, shard: Tensor) -> Any:
        if shard not in self:
            raise KeyError("the optimizer has no state for this shard.")
        return {key: as_local(value) for key, value in self._optimizer.state[self._of_shard[id(shard)]].items()}

    def __setitem__(self, shard: Tensor, state: Any) -> None:
        parameter = self._of_shard[id(shard)]
        self._optimizer.state[parameter] = {key: _like(value, parameter) for key, value in state.items()}

    def __delitem__(self, shard: Tensor) -> None:
        del self._optimizer.state[self._of_shard[id(shard)]]

    def __contains__(self, shard: object) -> bool:
        return self._of_shard.get(id(shard)) in self._optimizer.state

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("states of shards are asked for one by one.")

    def __len__(self) -> int:
        return len(self._optimizer.state)


class ShardOptimizer(Optimizer):
    """Groups and state of an optimizer, with this rank's shards in place of parameters. It does not step.

    Args:
        optimizer: The optimizer, or one that stands for several.
        of_shard: Shard's id -> the parameter.
        shards: Parameter's id -> this rank's shard of it.

    """

    def __init__(self, optimizer: Optimizer, of_shard: Mapping[int, Any], shards: Mapping[int, Tensor]) -> None:
        # Not Optimizer.__init__, which would make groups of its own; the optimizer replaces its when it loads a state.
        self._optimizer, self._of_shard, self._shards = optimizer, of_shard, shards
        self.members = optimizer.members if isinstance(optimizer, JointOptimizer) else (optimizer,)
        """The optimizers that step the parameters themselves."""
        self.defaults: dict[str, Any] = {}
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Groups as they now are; a parameter that is not sharded stands for itself."""
        return [
            {**group, "params": [self._shards.get(id(p), p) for p in group["params"]]}
            for group in self._optimizer.param_groups
        ]

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Local parts of the states, live."""
        return _LocalStates(self._optimizer, self._of_shard)

    def parameter_of(self, shard: Tensor) -> Any:
        """Return the parameter of a shard; what is not sharded stands for itself."""
        return self._of_shard.get(id(shard), shard)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [local_state(member) for member in self.members]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for member, state in zip(self.members, state_dict["optimizers"], strict=True):
            load_local_state(member, state)

    def step(self, closure: object = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuse: the optimizer itself steps."""
        raise TypeError("this is how an optimizer looks for one rank's shards; call step() of the optimizer.")


def local_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state_dict with this rank's parts of what is divided."""
    whole = optimizer.state_dict()
    return {**whole, "state": {k: {key: as_local(x) for key, x in own.items()} for k, own in whole["state"].items()}}


def load_local_state(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load what `local_state` has returned."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    state = {k: {key: _like(x, held[k]) for key, x in own.items()} for k, own in saved["state"].items()}
    optimizer.load_state_dict({**saved, "state": state})


def as_local(value: Any) -> Any:
    """Return this rank's part of a tensor that is divided; all else as it is."""
    return value.to_local() if hasattr(value, "to_local") else value


def _like(value: Any, parameter: Any) -> Any:
    """Return a local part of an optimizer's state as the optimizer keeps it: placed as its parameter is."""
    shard = as_local(parameter)
    if shard is parameter or not isinstance(value, Tensor) or value.shape != shard.shape or not shard.dim():
        return value
    made: Any = type(parameter.data)
    return made.from_local(
        value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
