"""From a plan to what carries it out on this model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.algorithms.base import ChecksOptimizer, StartsFromOptimizer, unwrapped
from pliant.collectives import place
from pliant.comm.base import Comm, another
from pliant.comm.hierarchical import by_hosts
from pliant.engine.exchange import Exchanger, NonFinite
from pliant.engine.feel import Feeler
from pliant.engine.felt import Curvature, felt_in
from pliant.engine.governor import Governor, governor_for
from pliant.engine.lane import Lane
from pliant.engine.means import average_states, average_weights
from pliant.engine.owned import Owned
from pliant.engine.served import Served
from pliant.engine.store import Store
from pliant.engine.tape import Tape
from pliant.engine.torchrun import hosts_from_torchrun
from pliant.engine.weights import Weights
from pliant.spec import Choice, SyncPlan

__all__ = ["InForce", "Maker", "owner_classes"]


@dataclass(frozen=True, kw_only=True)
class InForce:
    """What carries out a plan."""

    exchanger: Exchanger
    """Of gradients, and of momenta."""
    weights: Weights | None
    """None if gradients are all that is exchanged."""
    owned: Owned | None
    """None if every rank steps every parameter."""
    served: Served | None
    """None if ranks step together."""
    feeler: Feeler | None = None
    """None if no algorithm asks for the curvature."""
    governor: Governor | None = None
    """None if ratios stay as they are."""

    @property
    def apart(self) -> bool:
        """Whether ranks have weights and buffers of their own, and must not wait for each other in DDP."""
        return self.weights is not None or self.served is not None

    @property
    def ratio(self) -> float:
        """What a sparsifier's ratio was set to; 0 as long as none was."""
        return 0.0 if self.governor is None else self.governor.dial.ratio

    def after_step(self, step: int, lane: Lane) -> None:
        """Let who holds a target or looks at the curvature know that a step has ended. Collective."""
        if self.governor is not None:
            self.governor.after_step(lane)
        if self.feeler is not None:
            self.feeler.after_step(step, lane)

    def settle(self, step: int) -> None:
        """Make what is in flight a state that can be saved; at a free pace this is collective."""
        if self.weights is not None:
            self.weights.settle(step)
        if self.served is not None:
            self.served.finish()

    def hand_back(self) -> None:
        """Let owners be owners no more: all ranks get equal weights, and the whole optimizer state. Collective."""
        if self.served is not None:
            self.served.finish()
            self.served.close()
        if self.owned is not None:
            self.owned.give_all()


class Maker:
    """Makes what carries out a plan, on all ranks at once.

    Args:
        module: The model without its DDP.
        optimizer: The optimizer of its parameters.
        parameters: Name -> parameter, of those that are trained.
        tape: Where exchanges of weights are noted, and who talks.
        hosts: Ranks of each host; torchrun's placement if None.
        nonfinite: What to do about gradients that are not finite.

    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        parameters: Mapping[str, Tensor],
        tape: Tape,
        *,
        hosts: Sequence[Sequence[int]] | None,
        nonfinite: NonFinite,
    ) -> None:
        self._module, self._layers = module, owner_classes(module)
        self.curvature = Curvature()
        """What was felt of the loss, under whichever plan."""
        self._optimizer = optimizer
        self._parameters = parameters
        self._device = next(iter(parameters.values())).device
        self._comms: dict[bool, Comm] = {False: tape.comm}
        self._hosts = hosts
        self._nonfinite: NonFinite = nonfinite
        self._tape = tape

    def make(self, plan: SyncPlan, old: InForce | None, step: int) -> InForce:
        """Put a plan in the place of an old one that is drained, or of none. Collective."""
        choices = {n: plan.choice_for(n, self._layers[n], p.numel()) for n, p in self._parameters.items()}
        if any(choice.hierarchical for choice in choices.values()):
            self._know_hosts()
        store = Store(self._parameters, choices, self._comms)
        for algorithm in store.algorithms.values():
            inner = unwrapped(algorithm)
            if isinstance(inner, ChecksOptimizer):
                inner.check_optimizer(self._optimizer)
        self._place(store)
        felt = felt_in(store)
        if old is not None:
            old.hand_back()
        owed: dict[str, Tensor] = {} if old is None else store.adopt(old.exchanger.store)
        for name, parameter in self._parameters.items():
            inner = unwrapped(store.algorithms[choices[name]])
            if isinstance(inner, StartsFromOptimizer):
                inner.start_from(self._optimizer, parameter, store.tensors[name])
        exchanger = Exchanger(store, self._comms, self._nonfinite, self._optimizer, owed)
        weights = self._make_weights(store, old, step)
        has_owners = any(choice.owned for choice in choices.values())
        owned = Owned(store, self._comms[False], self._optimizer) if has_owners else None
        served = None
        if owned is not None and (bounds := {choice.staleness for choice in choices.values() if choice.served}):
            served = Served(owned, self._comms[False], self._optimizer, max(bounds))
        feeler = Feeler(self._module, felt, self._comms[False], self.curvature, step) if felt is not None else None
        if old is not None and old.feeler is not None:
            old.feeler.close()
            if felt is not None and feeler is not None and old.feeler.knows(felt):
                feeler.state = old.feeler.state
        before = None if old is None else old.governor
        governor = governor_for(choices, self._comms, self._tape, before, begins=old is None)
        exchanger.dial = None if governor is None else governor.dial
        return InForce(
            exchanger=exchanger, weights=weights, owned=owned, served=served, feeler=feeler, governor=governor
        )

    def _place(self, store: Store) -> None:
        """Give each parameter of owners an owner, the same on all ranks."""
        size = self._comms[False].size
        for choice in {choice for choice in store.choices.values() if choice.owned}:
            bandwidths = choice.bandwidths or (1.0,) * size
            if len(bandwidths) != size:
                raise ValueError(
                    f"the plan gives {len(bandwidths)} bandwidths, but there are {size} ranks; give one for each."
                )
            names = [name for name, own in store.choices.items() if own == choice]
            owners = place([self._parameters[name].numel() for name in names], bandwidths)
            for name, rank in zip(names, owners, strict=True):
                store.tensors[name]["owner"].fill_(rank)

    def remake(self, old: InForce, step: int) -> InForce:
        """Put the same plan in force among the ranks that go on, where weights are all that is exchanged. Collective.

        The old one is abandoned. What belongs to this rank is kept; the caller makes the ranks alike, and follows.
        """
        if old.feeler is not None:
            raise ValueError(
                "this plan has an algorithm that asks for the curvature, which is a mean over all ranks, but an "
                "elastic run goes on with any of them; leave elastic= out, or choose another algorithm."
            )
        store = Store(self._parameters, old.exchanger.store.choices, self._comms)
        store.keep(old.exchanger.store)
        weights = Weights(store, self._comms_for_weights(store.choices), self._optimizer, step, self._tape)
        if old.weights is not None:
            counters = weights.counters
            counters[:, 1] = old.weights.counters[:, 1]  # exchanges so far; none is in flight
            weights.counters = counters
        exchanger = Exchanger(store, self._comms, self._nonfinite, self._optimizer, {})
        return InForce(exchanger=exchanger, weights=weights, owned=None, served=None)

    def _make_weights(self, store: Store, old: InForce | None, step: int) -> Weights | None:
        before = {} if old is None else old.exchanger.store.choices
        if old is not None and old.weights is not None:
            old.weights.finish(step)
            apart = [n for n, c in before.items() if c.between_steps and c != store.choices[n]]
            average_weights([self._parameters[n] for n in apart], self._comms[False])
            joined = [self._parameters[n] for n in apart if not store.choices[n].between_steps]
            average_states(self._optimizer, joined, self._comms[False])
            old.weights.close()
        if not any(choice.between_steps for choice in store.choices.values()):
            return None
        weights = Weights(store, self._comms_for_weights(store.choices), self._optimizer, step, self._tape)
        weights.follow(lambda name: before.get(name) != store.choices[name])
        return weights

    def _comms_for_weights(self, choices: Mapping[str, Choice]) -> Mapping[bool, Comm]:
        """Make comms of their own, since weights travel beside gradients."""
        ours = another(self._comms[False])
        comms: dict[bool, Comm] = {False: ours}
        if any(choice.hierarchical and choice.between_steps for choice in choices.values()):
            comms[True] = by_hosts(ours, self._know_hosts())
        return comms

    def _know_hosts(self) -> Sequence[Sequence[int]]:
        """Make the two-level comm, once, and return the ranks of each host. Collective."""
        comm = self._comms[False]
        self._hosts = self._hosts if self._hosts is not None else hosts_from_torchrun(comm, self._device)
        if self._hosts is None:
            raise ValueError("this plan is hierarchical, but the hosts are not known; pass hosts= to relax().")
        if True not in self._comms:
            self._comms[True] = by_hosts(comm, self._hosts)
        return self._hosts


def owner_classes(module: nn.Module) -> dict[str, str]:
    """Return, for each parameter's full name, the class name of the layer that owns it."""
    return {
        f"{prefix}.{name}" if prefix else name: type(layer).__name__
        for prefix, layer in module.named_modules(remove_duplicate=False)
        for name, _ in layer.named_parameters(recurse=False, remove_duplicate=False)
    }
