"""Building of a plan's executor for a model: exchanges, owners, monitors."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pliant.algorithms.base import ChecksOptimizer, innermost, start_innermost
from pliant.codecs import codec_from
from pliant.comm.base import duplicate
from pliant.engine.acco import AccoStep
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.attendance import require_quorums
from pliant.engine.averaging import average_states, average_weights
from pliant.engine.between_steps import exchanges_between_steps
from pliant.engine.comm_thread import CommThread
from pliant.engine.comms import Comms
from pliant.engine.curvature_monitor import CurvatureMonitor
from pliant.engine.curvature_requests import Curvature, CurvatureRequest, requests_in
from pliant.engine.gradient_exchange import GradientExchange, NonFinite
from pliant.engine.momentum_check import momentum_checks
from pliant.engine.nodes import layer_classes, nodes_for
from pliant.engine.num_ranks import require_num_ranks
from pliant.engine.outer_settings import require_inner_optimizers, warn_of_few_rounds
from pliant.engine.owned_ranges import place_owners
from pliant.engine.owner_step import OwnerStep
from pliant.engine.owners import Owners, Servers
from pliant.engine.parts import Part
from pliant.engine.places import Places
from pliant.engine.plan_executor import PlanExecutor
from pliant.engine.ratio_controller import RatioController, controllers_for, require_timed_targets
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.server_threads import ServerThreads
from pliant.engine.shard_exchanges import ShardExchanges, shard_exchanges
from pliant.engine.shard_memory import require_within_limits
from pliant.engine.state_shapes import StateShapes, state_shapes
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import BetweenSteps
from pliant.spec import SyncPlan, with_schedule

__all__ = ["ExecutorBuilder"]


class ExecutorBuilder:
    """Builds the executor of a plan, on all ranks at once.

    Args:
        relaxed: The model and its optimizers.
        tracer: Tracer of the run, with its comm.
        comm_thread: Communication thread of the gradients.
        hosts: Ranks of each host; torchrun's placement if None.
        rack: Name of this rank's rack, or "".
        nonfinite: What to do about gradients that are not finite.

    """

    def __init__(
        self,
        relaxed: RelaxedModel,
        tracer: Tracer,
        comm_thread: CommThread,
        *,
        hosts: Sequence[Sequence[int]] | None,
        rack: str,
        nonfinite: NonFinite,
    ) -> None:
        self._relaxed, self._module, self._layers = relaxed, relaxed.module, layer_classes(relaxed.module)
        self.curvature = Curvature()
        """Samples of the curvature, under whichever plan."""
        self._optimizer, self._steppers = relaxed.local_optimizer, relaxed.steppers
        self._state_shapes: StateShapes = {}
        self._parameters: Mapping[str, Tensor] = relaxed.parameters
        self._device = next(iter(self._parameters.values())).device
        self._comms = Comms(relaxed.replicas(tracer.comm))
        if relaxed.sharded is not None and hosts is not None:  # in numbers of all ranks
            hosts = relaxed.sharded.hosts_of_replicas(hosts)
        self._places = Places(self._comms.all, self._device, hosts, rack)
        self._nonfinite: NonFinite = nonfinite
        self._tracer, self._comm_thread = tracer, comm_thread

    def make(self, plan: SyncPlan, old: PlanExecutor | None, step: int) -> PlanExecutor:
        """Build the executor of a plan in place of an earlier one with nothing in flight, or of none. Collective.

        Note [what a switch carries over] says what moves.

        Args:
            plan: The new plan.
            old: The earlier executor, which ends here.
            step: Steps made.

        """
        self._steppers = self._relaxed.steppers
        nodes = nodes_for(plan, self._relaxed, self._parameters, self._layers, self._steppers)
        self._comms = self._places.with_levels(self._comms, nodes.values())
        if any(node.needs_links for node in nodes.values()):
            nodes = {name: with_schedule(node, self._places.links) for name, node in nodes.items()}
        store = AlgorithmState(self._parameters, nodes, self._comms)
        self._check_optimizers(store)
        require_quorums(nodes.values(), self._comms.all.size)
        require_num_ranks(nodes.values(), self._places)
        warn_of_few_rounds(nodes.values())
        self._state_shapes = state_shapes(store, self._optimizer, self._steppers)
        place_owners(store, self._comms.all.size, self._steppers)
        request = requests_in(store, self._steppers)
        if request is not None:
            self._relaxed.require_whole("the plan looks at the curvature of a whole model", "set power=0")
        if self._relaxed.sharded is not None:
            require_within_limits(self._relaxed.sharded, nodes)
        require_timed_targets(nodes.values(), self._tracer)
        if old is not None:  # what follows changes something, so refusals come before
            old.hand_back(step)
        owed: dict[str, Tensor] = {} if old is None else store.adopt(old.gradients.store, old.gradients.owed)
        for name, parameter in self._parameters.items():
            if (stepper := self._steppers.get(id(parameter))) is not None:  # which does not know shards
                optimizer = stepper if self._relaxed.sharded is None else self._optimizer
                start_innermost(store.algorithms[nodes[name]], optimizer, parameter, store.tensors[name])
        gradients = GradientExchange(store, self._comms, self._nonfinite, self._optimizer, owed, plan.sparse)
        weights = self._make_weights(store, old, step)
        served, owners = self._make_owners(store)
        looks = self._make_monitor(request, old, step)
        before = [] if old is None else old.of(RatioController)
        controllers = controllers_for(nodes, self._comms, self._tracer, self._comm_thread, before, begins=old is None)
        for controller in controllers:
            gradients.ratio_setting = controller.ratio_setting
        if old is not None:
            old.close()
        before = [] if old is None else old.of(ShardExchanges)
        shards = shard_exchanges(self._relaxed.sharded, nodes, before, self._tracer, checks=self._nonfinite == "raise")
        checks, beside = momentum_checks(store, self._steppers), (*shards, *weights, *controllers, *looks)
        return PlanExecutor(gradients=gradients, owners=owners, checks=checks, served=served, beside=beside)

    def _make_monitor(
        self, request: CurvatureRequest | None, old: PlanExecutor | None, step: int
    ) -> list[CurvatureMonitor]:
        """Return the monitor of the curvature, if an algorithm needs it, with the state of the earlier one."""
        if request is None:
            return []
        comm, comm_thread = self._comms.all, self._comm_thread
        monitor = CurvatureMonitor(self._relaxed.ddp, self._module, request, comm, comm_thread, self.curvature, step)
        for before in [] if old is None else old.of(CurvatureMonitor):
            if before.knows(request):
                monitor.state = before.state
        return [monitor]

    def _check_optimizers(self, store: AlgorithmState) -> None:
        """Raise ValueError for an optimizer that does not fit the algorithm of a parameter that it steps."""
        require_inner_optimizers(store.nodes.values(), self._relaxed.optimizers)
        stepped = [(store.nodes[n], self._steppers.get(id(p))) for n, p in self._parameters.items()]
        for node, optimizer in dict.fromkeys(stepped):
            if optimizer is None:
                continue
            if self._relaxed.sharded is not None and node.exchanges_weights:
                self._relaxed.sharded.require_own_step(optimizer)
            inner = innermost(store.algorithms[node])
            if isinstance(inner, ChecksOptimizer):
                inner.check_optimizer(optimizer)
            if node.has_owners and isinstance(optimizer, torch.optim.LBFGS):
                raise ValueError(
                    f"{type(optimizer).__name__} needs a closure, with which it looks at all parameters at once, but "
                    f"under this plan ({node}) each rank steps those that it owns; choose a plan without owners."
                )

    def _make_owners(self, store: AlgorithmState) -> tuple[tuple[Part, ...], Owners]:
        """Return what steps beside the ranks' own steps, if the plan has such, and the owners."""
        theirs = {self._steppers[id(store.parameters[n])] for n, node in store.nodes.items() if node.has_owners}
        owned = {each: OwnerStep(store, self._comms, each) for each in self._relaxed.optimizers if each in theirs}
        # A plan has one bound for all.
        bound = next((n.staleness_bound for n in store.nodes.values() if n.staleness_bound is not None), None)
        owners = Owners(owned, self._comm_thread, self._tracer, sends=bound is None)
        if bound is None:
            beside = [node for node in dict.fromkeys(store.nodes.values()) if node.steps_beside]
            apart = self._places.with_levels(Comms(duplicate(self._comms.all)), beside) if beside and owned else None
            return () if apart is None else (AccoStep(store, owned, apart, self._tracer),), owners
        if not owned:
            return (), owners
        coded = next((n.payload_codec for n in store.nodes.values() if n.staleness_bound is not None), None)
        codec, comm = None if coded is None else codec_from(coded), self._comms.all
        served = {
            each: ServerThreads(own, comm, each, bound, codec=codec, slots=store.tensors) for each, own in owned.items()
        }
        for each in served.values():
            self._tracer.shutdown.add(each)
        return (Servers(served, self._tracer),), owners

    def rebuild(self, old: PlanExecutor, step: int) -> PlanExecutor:
        """Build the executor of the same plan for other ranks, where only weights are exchanged. Collective.

        The old one is abandoned. State of this rank is kept; the caller makes the ranks alike, and calls `follow`.
        """
        if old.of(CurvatureMonitor):
            raise ValueError(
                "this plan has an algorithm that asks for the curvature, which is a mean over all ranks, but an "
                "elastic run goes on with any of them; leave elastic= out, or choose another algorithm."
            )
        store = AlgorithmState(self._parameters, old.gradients.store.nodes, self._comms)
        store.keep(old.gradients.store)
        weights = self._exchanges_between_steps(store, step)
        for made, before in zip(weights, old.of(BetweenSteps), strict=True):
            made.rounds = before.rounds  # none is in flight
        gradients = GradientExchange(store, self._comms, self._nonfinite, self._optimizer, {}, old.gradients.sparse)
        return PlanExecutor(
            gradients=gradients,
            owners=Owners({}, self._comm_thread, self._tracer),
            checks=momentum_checks(store, self._steppers),
            beside=tuple(weights),
        )

    def _make_weights(self, store: AlgorithmState, old: PlanExecutor | None, step: int) -> list[BetweenSteps]:
        before = {} if old is None else old.gradients.store.nodes
        if old is not None and old.of(BetweenSteps):
            apart = [n for n, node in before.items() if node.exchanges_weights and node != store.nodes[n]]
            average_weights([self._parameters[n] for n in apart], self._comms.all)
            joined = [self._parameters[n] for n in apart if not store.nodes[n].exchanges_weights]
            average_states(self._optimizer, joined, self._comms.all)
        made = self._exchanges_between_steps(store, step)
        for each in made:
            each.reset_reference(lambda name: before.get(name) != store.nodes[name])
        return made

    def _exchanges_between_steps(self, store: AlgorithmState, step: int) -> list[BetweenSteps]:
        return exchanges_between_steps(
            store,
            self._comms,
            self._places,
            optimizer=self._optimizer,
            shapes=self._state_shapes,
            step=step,
            tracer=self._tracer,
        )
