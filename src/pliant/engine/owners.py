"""Owners of parameters where several optimizers step: each optimizer's parameters are owned by themselves."""

from collections.abc import Mapping

from torch.optim import Optimizer

from pliant.engine.comm_thread import CommThread
from pliant.engine.owner_step import OwnerStep
from pliant.engine.parts import Part
from pliant.engine.server_threads import ServerThreads
from pliant.engine.tracer import Tracer

__all__ = ["Owners", "Servers"]


class Owners(Part):
    """Owners around the step of each optimizer.

    Args:
        owned: The owners of each optimizer's parameters; empty if every rank steps every parameter.
        comm_thread: Where new weights are sent.
        tracer: Where waiting for them is noted.
        sends: Whether new weights are sent after a step; owners at a free pace answer from threads instead.

    """

    def __init__(
        self, owned: Mapping[Optimizer, OwnerStep], comm_thread: CommThread, tracer: Tracer, *, sends: bool = True
    ) -> None:
        self._owned, self._comm_thread, self._tracer, self._sends = owned, comm_thread, tracer, sends
        if owned:
            self.keeps_from_joining = "this plan lets one rank step each parameter, and it would have to go on"

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Take from an optimizer what others own."""
        if optimizer in self._owned:
            self._owned[optimizer].before_step()

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Send the new weights of what an optimizer has stepped to all, and take theirs. Collective."""
        if self._sends and optimizer in self._owned:
            share = self._owned[optimizer].share
            with self._tracer.record_wait():
                self._comm_thread.submit(lambda: share(step + 1), name="new weights", step=step).wait()

    def hand_back(self, step: int) -> None:
        """Give every rank the whole state of all optimizers. Collective."""
        for owned in self._owned.values():
            owned.give_all()

    def after_load(self) -> None:
        """Let all optimizers hold nothing of what others own."""
        for owned in self._owned.values():
            owned.drop_others()

    @property
    def names(self) -> set[str]:
        """All parameters that have an owner."""
        return {name for owned in self._owned.values() for name in owned.names}

    def names_of(self, rank: int) -> list[str]:
        """Return the parameters that a rank owns."""
        return [name for owned in self._owned.values() for name in owned.names_of(rank)]


class Servers(Part):
    """Owners at a free pace, for each optimizer.

    Args:
        served: The servers of each optimizer's parameters.
        tracer: Where waiting for weights is noted.

    """

    keeps_from_joining = "this plan exchanges weights between steps"
    lets_ranks_differ = True

    def __init__(self, served: Mapping[Optimizer, ServerThreads], tracer: Tracer) -> None:
        self._served, self._tracer = served, tracer

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Send an optimizer's gradients to the owners, and take weights from them."""
        if optimizer in self._served:
            with self._tracer.record_wait():
                self._served[optimizer].step(step)

    def settle(self, step: int) -> None:
        """Wait until all gradients are used. Collective."""
        for served in self._served.values():
            served.finish()

    def hand_back(self, step: int) -> None:
        """Wait until all gradients are used, and end the threads. Collective."""
        self.settle(step)
        for served in self._served.values():
            served.close()

    def abandon(self) -> None:
        """Tell all peers that this rank is lost to them; nothing after `hand_back`."""
        for served in self._served.values():
            served.abandon()

    def after_load(self) -> None:
        """Go on from the model's weights and the optimizers' states as they are."""
        for served in self._served.values():
            served.begin()
