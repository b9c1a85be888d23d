"""Owners of parameters for several optimizers: the parameters of each optimizer have owners of their own."""

from collections.abc import Mapping

from torch.optim import Optimizer

from pliant.collectives import assign_owners
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.comm_thread import CommThread
from pliant.engine.owner_step import OwnerStep
from pliant.engine.parts import Part
from pliant.engine.server_threads import ServerThreads
from pliant.engine.tracer import Tracer
from pliant.spec import ParameterServer, ShardedOptimizer

__all__ = ["Owners", "Servers", "place_owners"]


class Owners(Part):
    """Steps of owners, around each optimizer's step.

    Args:
        owned: The owners of each optimizer's parameters; empty if every rank steps every parameter.
        comm_thread: Communication thread that sends new weights.
        tracer: Tracer that measures waiting for them.
        sends: Whether new weights are sent after a step; owners at a free pace answer from threads instead.

    """

    def __init__(
        self, owned: Mapping[Optimizer, OwnerStep], comm_thread: CommThread, tracer: Tracer, *, sends: bool = True
    ) -> None:
        self._owned, self._comm_thread, self._tracer, self._sends = owned, comm_thread, tracer, sends
        if owned:
            self.keeps_from_joining = "this plan lets one rank step each parameter, and it would have to go on"

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Drop an optimizer's gradients of others' parameters."""
        if optimizer in self._owned:
            self._owned[optimizer].before_step()

    def optimizer_stepped(self, optimizer: Optimizer, step: int) -> None:
        """Send the new weights that an optimizer has stepped to all, and receive theirs. Collective."""
        if self._sends and optimizer in self._owned:
            share = self._owned[optimizer].share
            with self._tracer.record_wait():
                self._comm_thread.submit(lambda: share(step + 1), name="new weights", step=step).wait()

    def hand_back(self, step: int) -> None:
        """Give every rank the whole state of all optimizers. Collective."""
        for owned in self._owned.values():
            owned.give_all()

    def after_load(self) -> None:
        """Drop all optimizers' state of others' parameters."""
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
    """Server threads of owners at a free pace, for each optimizer.

    Args:
        served: The servers of each optimizer's parameters.
        tracer: Tracer that measures waiting for weights.

    """

    keeps_from_joining = "this plan exchanges weights between steps"
    lets_ranks_differ = True

    def __init__(self, served: Mapping[Optimizer, ServerThreads], tracer: Tracer) -> None:
        self._served, self._tracer = served, tracer

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Send an optimizer's gradients to the owners, and receive weights from them."""
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
        """Tell all peers that this rank is lost to them; does nothing after `hand_back`."""
        for served in self._served.values():
            served.abandon()

    def after_load(self) -> None:
        """Continue from the current weights and optimizer states."""
        for served in self._served.values():
            served.begin()


def place_owners(store: AlgorithmState, size: int) -> None:
    """Give each parameter of a store that is to have an owner one of `size` ranks, the same on all."""
    for node in set(store.nodes.values()):
        if not isinstance(node, (ShardedOptimizer, ParameterServer)):
            continue
        bandwidths = node.placement.bandwidths or (1.0,) * size
        if len(bandwidths) != size:
            raise ValueError(
                f"the plan gives {len(bandwidths)} bandwidths, but there are {size} ranks; give one for each."
            )
        names = [name for name, own in store.nodes.items() if own == node]
        owners = assign_owners([store.parameters[name].numel() for name in names], bandwidths)
        for name, rank in zip(names, owners, strict=True):
            store.tensors[name]["owner"].fill_(rank)
