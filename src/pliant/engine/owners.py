"""Owners of parameters where several optimizers step: each optimizer's parameters are owned by themselves."""

from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from pliant.engine.owned import OwnerStep
from pliant.engine.served import ServerThreads

__all__ = ["Owners", "Servers"]


class Owners:
    """Owners around the step of each optimizer."""

    def __init__(self, owned: Mapping[Optimizer, OwnerStep]) -> None:
        self._owned = owned

    def before_step(self, optimizer: Optimizer) -> None:
        """Take from an optimizer what others own."""
        if optimizer in self._owned:
            self._owned[optimizer].before_step()

    def share(self, optimizer: Optimizer, step: int) -> None:
        """Send the new weights of what an optimizer has stepped to all, and take theirs. Collective; in the lane."""
        if optimizer in self._owned:
            self._owned[optimizer].share(step)

    def give_all(self) -> None:
        """Give every rank the whole state of all optimizers. Collective."""
        for owned in self._owned.values():
            owned.give_all()

    @property
    def names(self) -> set[str]:
        """All parameters that have an owner."""
        return {name for owned in self._owned.values() for name in owned.names}

    def names_of(self, rank: int) -> list[str]:
        """Return the parameters that a rank owns."""
        return [name for owned in self._owned.values() for name in owned.names_of(rank)]

    def drop_others(self) -> None:
        """Let all optimizers hold nothing of what others own."""
        for owned in self._owned.values():
            owned.drop_others()


class Servers:
    """Owners at a free pace, for each optimizer."""

    def __init__(self, served: Mapping[Optimizer, ServerThreads]) -> None:
        self._served = served

    def step(self, optimizer: Optimizer, step: int) -> None:
        """Send an optimizer's gradients to the owners, and take weights from them."""
        if optimizer in self._served:
            self._served[optimizer].step(step)

    def finish(self) -> None:
        """Wait until all gradients are used. Collective."""
        for served in self._each():
            served.finish()

    def begin(self) -> None:
        """Go on from the model's weights and the optimizers' states as they are."""
        for served in self._each():
            served.begin()

    def close(self) -> None:
        """End the threads, after `finish`. Collective."""
        for served in self._each():
            served.close()

    def abandon(self) -> None:
        """Tell all peers that this rank is lost to them; nothing after `close`."""
        for served in self._each():
            served.abandon()

    def _each(self) -> Sequence[ServerThreads]:
        return list(self._served.values())
