"""Several optimizers of one model, such as Muon and AdamW, seen as one."""

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["JointOptimizer", "join_optimizers", "optimizer_name"]


class _States(MutableMapping[Tensor, Any]):
    """States of all members, parameter by parameter, in the dicts of those that hold the parameters."""

    def __init__(self, members: Sequence[Optimizer]) -> None:
        self._members = members

    def __getitem__(self, parameter: Tensor) -> Any:
        if parameter not in self:
            raise KeyError("no optimizer has a state for this parameter.")  # members' own dicts would make one
        return self._of(parameter)[parameter]

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._of(parameter)[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in member.state for member in self._members)

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for member in self._members for parameter in member.state)

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)

    def _of(self, parameter: Tensor) -> MutableMapping[Tensor, Any]:
        for member in self._members:
            if any(parameter is held for group in member.param_groups for held in group["params"]):
                return member.state
        raise KeyError("no optimizer holds this parameter.")


class JointOptimizer(Optimizer):
    """Groups and state of several optimizers, in their order.

    It does not step. Its hooks are called by a run: before the first member's part of a step, and after the last's.
    """

    def __init__(self, members: Sequence[Optimizer]) -> None:
        # Not Optimizer.__init__, which would make groups of its own; members replace theirs when they load a state.
        self.members = tuple(members)
        self.defaults: dict[str, Any] = {}
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All members' groups, as they now are."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All members' states, live."""
        return _States(self.members)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for member, state in zip(self.members, state_dict["optimizers"], strict=True):
            member.load_state_dict(state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for member in self.members:
            member.zero_grad(set_to_none)

    def step(self, closure: object = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuse: which member steps when is the training loop's."""
        raise TypeError("this stands for several optimizers; call step() of each.")

    def tell(self, *, begins: bool) -> None:
        """Call the hooks of the beginning, or of the end, of a step that all members make."""
        hooks = self._optimizer_step_pre_hooks if begins else self._optimizer_step_post_hooks
        for hook in list(hooks.values()):
            hook(self, (self,), {})


def join_optimizers(optimizers: Sequence[Optimizer]) -> Optimizer:
    """Return an optimizer that stands for all of them: itself, if there is only one."""
    return optimizers[0] if len(optimizers) == 1 else JointOptimizer(optimizers)


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the class of an optimizer, or the classes of all that it stands for."""
    members = optimizer.members if isinstance(optimizer, JointOptimizer) else (optimizer,)
    return " and ".join(sorted({type(each).__name__ for each in members}))
