"""Changes of a run's plan: at the caller's wish, on trial, or after a failure."""

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.comm.recorded import RecordedComm
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.attachments import AttachedProfile
from pliant.engine.averaging import average_run
from pliant.engine.comm_thread import CommThread
from pliant.engine.executor import ExecutorBuilder
from pliant.engine.gradient_exchange import GradientExchange
from pliant.engine.initial_sync import broadcast_optimizer, broadcast_tensors
from pliant.engine.plan_executor import PlanExecutor
from pliant.engine.plan_resolution import PlanLike, require_plan, resolve_plan
from pliant.engine.rank_checks import gather_numbers
from pliant.engine.relaxed_model import RelaxedModel
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.sharded_model import num_shards_of
from pliant.engine.skipping import CountsSkips
from pliant.engine.sources import GradientSource
from pliant.engine.step_counts import plan_number
from pliant.engine.trial import PlanOnTrial
from pliant.engine.weight_exchange import WeightExchange
from pliant.spec import SyncPlan

__all__ = ["SwitchesPlans"]


class SwitchesPlans(CountsSkips):
    """Base of a run that changes its plan.

    Note [what a switch carries over]: between the same two steps on all ranks, with nothing in flight.

    - Weights, optimizer, step and the count of backward passes stay, and so do random numbers, which are drawn from it.
    - A parameter whose node is equal under both plans keeps all slots.
    - Otherwise its gradients in `store.OWED` slots, and what a plan before had left, move into the new residual, or are
      added to the next gradient (Note [conservation]). Other slots, momenta included, start at zero.
    - Weights that the old plan let differ become their mean where the new node is another, and the optimizer's state of
      them too where gradients are exchanged from then on. Weights that are exchanged under a new node start from there.
    - Owners give all ranks the optimizer's state before new owners drop it.
    - A ratio controller with the same target and a curvature monitor with the same request keep their state.
    """

    optimizer: Optimizer
    plan: SyncPlan
    profile: AttachedProfile
    trial: PlanOnTrial
    _agreement: ReplicaCheck
    _comm: RecordedComm
    _device: torch.device
    _gradients: GradientExchange
    _relaxed: RelaxedModel
    _comm_thread: CommThread
    _debts: Sequence[Sequence[Tensor | None]] = ()
    """Residuals of shards when a trial began."""
    _executor: PlanExecutor
    _executor_builder: ExecutorBuilder
    _module: nn.Module
    _plan_number: int
    _source: GradientSource

    @property
    def num_shards(self) -> int:
        """Ranks among which parameters are divided; 1 under replicate(), 0 for whole ones."""
        return num_shards_of(self._relaxed.sharded)

    def switch(self, what: PlanLike, *, pay: bool = True) -> None:
        """Put another plan in force, on all ranks between the same two steps (Note [what a switch carries over]).

        Args:
            what: A plan, or what `relax` takes for one.
            pay: Whether gradients that have no residual to go to are added to the next exchange; else they are dropped.

        Raises:
            ValueError: Ranks ask for different plans, or the plan does not fit the optimizer. Nothing has changed.

        """
        self.catch_up()
        self._comm_thread.drain()
        plan = self._relaxed.resolve(resolve_plan(what, self.optimizer))
        require_plan(plan, self._comm, self._device)
        self._source.require_carried(plan)
        self.profile.end()
        self._put_in_force(plan, self._executor_builder.make(plan, self._executor, self._dispatcher.step))
        if not pay:
            self._gradients.drop_owed()
            for part in self._executor.parts:
                part.drop_owed()

    def put_on_trial(self, plan: SyncPlan) -> None:
        """Put a plan in force on trial: its errors are kept, not raised, until `trial.end()`. Collective."""
        self._comm_thread.drain()
        self.trial.begin(self._module, self._relaxed.optimizers, self._gradients.owed)
        self._debts = [part.debts() for part in self._executor.of(ShardExchanges)]
        with self.trial.catch_errors():
            self.switch(plan)

    def undo(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one whose trial has failed, and restore the rest. Collective."""
        with self.trial.catch_errors():
            self._comm_thread.drain()
        with self.trial.catch_errors():
            self._executor.close()
        self._put_in_force(plan, self._executor_builder.make(plan, None, self._dispatcher.step))
        self._gradients.owed.update(self.trial.owed)
        for part, debts in zip(self._executor.of(ShardExchanges), self._debts, strict=True):
            part.owe(debts)
        self.trial.restore()

    def adopt(self, plan: SyncPlan) -> None:
        """Put a plan in force for good, or keep the one on trial: its errors are kept, not raised, until `trial.end()`.

        Those of a sharded model's gathers are raised, since the pass that waits for them cannot go on without.
        Collective.
        """
        stays = self.trial.is_on and plan.hash == self.plan.hash
        if not stays:
            self._comm_thread.drain()
        self.trial.guard(self._module, self._relaxed.optimizers)
        if stays:
            self._let_compare()
            return
        with self.trial.catch_errors():
            self.switch(plan)

    def fall_back(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one that was adopted and has failed. Collective, on all ranks.

        Weights and optimizer states become those of the first rank among those with most steps in them; where ranks had
        weights of their own, their mean. Of a sharded model these are the ranks that hold the same shard; a shard that
        no other rank holds lacks the steps that were undone on it. Residuals are dropped, since they may be invalid.
        """
        nodes, relaxed = self._gradients.store.nodes, self._relaxed
        replicas = relaxed.replicas(self._comm)
        with self.trial.catch_errors():
            self._comm_thread.drain()
        self.trial.restore()
        rows = gather_numbers([self.trial.undone, self._plan_number], replicas, self._device)
        undone, plans = zip(*rows, strict=True)
        root, apart = undone.index(min(undone)), list[Tensor]()
        if len(set(plans)) == 1:  # else some ranks have left it already, and have what others owned
            apart = [relaxed.parameters[name] for name, node in nodes.items() if node.exchanges_weights]
            with self.trial.catch_errors():
                self._executor.hand_back_owned(self._dispatcher.step)
        with self.trial.catch_errors():
            self._executor.close()
        self._put_in_force(plan, self._executor_builder.make(plan, None, self._dispatcher.step))
        if apart:
            average_run(apart, relaxed.local_optimizer, replicas)
        elif relaxed.sharded is not None:
            broadcast_tensors(relaxed.sharded.equal_tensors(relaxed.optimizer), replicas, root)
        else:
            broadcast_tensors([*self._module.parameters(), *self._module.buffers()], replicas, root)
            with contextlib.suppress(TypeError):  # a state that cannot be sent stays
                broadcast_optimizer(relaxed.optimizer, replicas, self._device, root=root)
        self._source.weights_changed()

    def _put_in_force(self, plan: SyncPlan, executor: PlanExecutor) -> None:
        self._executor = executor
        self.plan, self._gradients, self._plan_number = plan, executor.gradients, plan_number(plan)
        self._dispatcher.put_in_force(executor.gradients, as_ready=plan.order == "ready")
        nodes = executor.gradients.store.nodes
        self._source.put_in_force(plan, nodes, differ=executor.ranks_differ, parts=executor.parts)
        if not self.trial.is_on:
            self._let_compare()

    def _let_compare(self) -> None:
        """Let ranks that exchange weights compare their counts now and then: not on trial, when steps may be undone."""
        for exchange in self._executor.of(WeightExchange):
            exchange.agree(self._agreement, self._plan_number)
