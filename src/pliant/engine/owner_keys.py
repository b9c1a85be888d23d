"""State of an optimizer with owners, as its state_dict has it: each rank's parts under a key of that rank."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from pliant.engine.owned_ranges import OwnedRanges

__all__ = ["OwnerKeys", "is_of_ranks"]


class OwnerKeys:
    """Keys of ranks in an optimizer's state_dict, so that ranks do not overwrite each other's parts in a checkpoint.

    `torch.distributed.checkpoint` keeps one rank's entry where several have the same name. So state_dict() has each
    vector of what this rank owns of a cut parameter under ``rank<i>``, as in ``{"step": ..., "exp_avg": {"rank0":
    ...}}``. A parameter that it owns whole is as torch has it, and one of which it owns nothing is left empty.
    load_state_dict() takes both.

    Args:
        optimizer: The user's, of which hooks are made.
        parameters: Name -> parameter, of all that have owners.
        owned: Name -> what this rank owns, of those of which it owns something.
        rank: This rank.

    """

    def __init__(
        self, optimizer: Optimizer, parameters: Mapping[str, Tensor], owned: Mapping[str, OwnedRanges], rank: int
    ) -> None:
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._owned, self._rank = dict(owned), rank
        self._lacking: dict[str, str] = {}
        """Parameter of which this rank owns something that was not loaded -> what was loaded in its place."""
        self._hooks = (
            optimizer.register_state_dict_post_hook(self._show),
            optimizer.register_load_state_dict_pre_hook(self._take),
        )

    def close(self) -> None:
        """Remove the hooks; a second call does nothing."""
        for hook in self._hooks:
            hook.remove()

    def has_own(self) -> None:
        """Note that what this rank owns has been loaded."""
        self._lacking.clear()

    def require_own(self) -> None:
        """Raise if the optimizer was loaded without what this rank owns, and the run was not loaded after it.

        Raises:
            ValueError: With the parameter, what was loaded of it and what this rank owns.

        """
        for name, loaded in self._lacking.items():
            raise ValueError(
                f"the optimizer was loaded with {loaded} of {name}, but rank {self._rank} owns "
                f"{self._owned[name].numel} elements of it, whose state would be lost; load the run after the "
                "optimizer, with run.load_state_dict(), run.load_part() or pliant.load_run(), on all ranks."
            )

    def _show(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state = state_dict["state"]
        for key, name in self._keys(optimizer, state_dict):
            own = self._owned.get(name)
            if key in state and own is None:  # made by get_state_dict, as a place for what is loaded
                state[key] = {}
            elif key in state and own is not None and not own.is_whole:
                state[key] = {k: self._keyed(x) for k, x in own.cut(state[key]).items()}

    def _keyed(self, x: Any) -> Any:
        return {f"rank{self._rank}": x} if isinstance(x, Tensor) and x.dim() else x

    def _take(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = dict(state_dict["state"])
        for key, name in self._keys(optimizer, state_dict):
            entry, own = state.get(key), self._owned.get(name)
            self._lacking.pop(name, None)
            if own is None:
                state.pop(key, None)
            elif entry is not None and (not entry or is_of_ranks(entry)):
                mine = {k: x.get(f"rank{self._rank}") if _is_by_rank(x) else x for k, x in entry.items()}
                if not entry or own.is_whole or any(x is None for x in mine.values()) or not own.is_cut(mine):
                    state.pop(key)
                    ranks = sorted({f"the part of {rank}" for x in entry.values() if _is_by_rank(x) for rank in x})
                    self._lacking[name] = " and ".join(ranks) or "nothing"
                else:
                    state[key] = mine
        return {**state_dict, "state": state}

    def _keys(self, optimizer: Optimizer, state_dict: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
        """Yield a state_dict's key, a number or a name, and the name of each parameter that has owners."""
        keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        held = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for key, parameter in zip(keys, held, strict=False):  # torch refuses groups that differ
            if id(parameter) in self._names:
                yield key, self._names[id(parameter)]


def is_of_ranks(state: Mapping[str, Any]) -> bool:
    """Say whether a parameter's state is of parts, under keys of their ranks."""
    return any(_is_by_rank(x) for x in state.values())


def _is_by_rank(x: Any) -> bool:
    return isinstance(x, Mapping) and all(re.fullmatch(r"rank\d+", str(k)) for k in cast("Mapping[Any, Any]", x))
