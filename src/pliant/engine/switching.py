"""Changes of a run's plan: at the caller's wish, on trial, or after a failure."""

import contextlib

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.comm.recorded import RecordedComm
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.alike import gathered
from pliant.engine.attached import AttachedRecording
from pliant.engine.choose import PlanLike, plan_from, require_plan
from pliant.engine.doing import plan_number
from pliant.engine.exchange import GradientExchange
from pliant.engine.gate import RelaxedModel
from pliant.engine.lane import CommThread
from pliant.engine.making import ExecutorBuilder, PlanExecutor
from pliant.engine.means import join
from pliant.engine.skipping import CountsSkips
from pliant.engine.sources import GradientSource
from pliant.engine.start import broadcast_optimizer, broadcast_tensors
from pliant.engine.trial import PlanOnTrial
from pliant.engine.wire import require_carried
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
    recording: AttachedRecording
    trial: PlanOnTrial
    _agreement: ReplicaCheck
    _comm: RecordedComm
    _device: torch.device
    _exchanger: GradientExchange
    _held: RelaxedModel
    _lane: CommThread
    _made: PlanExecutor
    _maker: ExecutorBuilder
    _module: nn.Module
    _plan_number: int
    _source: GradientSource

    def switch(self, what: PlanLike, *, pay: bool = True) -> None:
        """Put another plan in force, on all ranks between the same two steps (Note [what a switch carries over]).

        Args:
            what: A plan, or what `relax` takes for one.
            pay: Whether gradients that have no residual to go to are added to the next exchange; else they are dropped.

        Raises:
            ValueError: Ranks ask for different plans, or the plan does not fit the optimizer. Nothing has changed.

        """
        self.catch_up()
        self._lane.drain()
        plan = plan_from(what, self.optimizer)
        if self._held.group is not None:
            require_carried(plan, self._held.group, self._device)
        require_plan(plan, self._comm, self._device)
        self._source.require_carried(plan)
        self.recording.end()
        compares = not self.trial.is_on
        self._put_in_force(plan, self._maker.make(plan, self._made, self._arrivals.step, compares=compares))
        if not pay:
            self._exchanger.forgive()

    def try_out(self, plan: SyncPlan) -> None:
        """Put a plan in force on trial: its errors are kept, not raised, until `trial.end()`. Collective."""
        self._lane.drain()
        self.trial.begin(self._module, self._held.optimizers, self._exchanger.owed)
        with self.trial.noting():
            self.switch(plan)

    def undo(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one whose trial has failed, and restore the rest. Collective."""
        with self.trial.noting():
            self._lane.drain()
        with self.trial.noting():
            self._made.close()
        self._put_in_force(plan, self._maker.make(plan, None, self._arrivals.step, compares=False))
        self._exchanger.owed.update(self.trial.owed)
        self.trial.restore()

    def adopt(self, plan: SyncPlan) -> None:
        """Put a plan in force for good: its errors are kept, not raised, until `trial.end()`. Collective."""
        self._lane.drain()
        self.trial.guard(self._module, self._held.optimizers)
        with self.trial.noting():
            self.switch(plan)

    def fall_back(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one that was adopted and has failed. Collective, on all ranks.

        Weights and optimizer states become those of the first rank among those with most steps in them; where ranks had
        weights of their own, their mean. Residuals of the failed plan are dropped, since they may be invalid.
        """
        nodes, held = self._exchanger.store.nodes, self._held
        with self.trial.noting():
            self._lane.drain()
        self.trial.restore()
        rows = gathered([self.trial.undone, self._plan_number], self._comm, self._device)
        undone, plans = zip(*rows, strict=True)
        root, apart = undone.index(min(undone)), list[Tensor]()
        if len(set(plans)) == 1:  # else some ranks have left it already, and have what others owned
            apart = [held.parameters[name] for name, node in nodes.items() if node.exchanges_weights]
            with self.trial.noting():
                self._made.hand_back_owned(self._arrivals.step)
        with self.trial.noting():
            self._made.close()
        self._put_in_force(plan, self._maker.make(plan, None, self._arrivals.step))
        if apart:
            join(apart, held.optimizer, self._comm)
        else:
            broadcast_tensors([*self._module.parameters(), *self._module.buffers()], self._comm, root)
            with contextlib.suppress(TypeError):  # a state that cannot be sent stays
                broadcast_optimizer(held.optimizer, self._comm, self._device, root=root)

    def _put_in_force(self, plan: SyncPlan, made: PlanExecutor) -> None:
        self._made = made
        self.plan, self._exchanger, self._plan_number = plan, made.exchanger, plan_number(plan)
        self._arrivals.put_in_force(made.exchanger, as_ready=plan.order == "ready")
        self._source.put_in_force(plan, made.exchanger.store.nodes, differ=made.ranks_differ)
