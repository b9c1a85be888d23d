"""The plan of a run changes: because the caller wants it, on trial, or since it has failed."""

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
    """The part of a run that puts plans in force."""

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
        """Put another plan in force, on all ranks between the same two steps.

        Gradients that the old plan still owes pass to the new one: into its residual, or, unless they are not to be
        paid, into its next exchange. Weights that the old plan let differ, and the new one treats otherwise, become
        their mean over ranks; so do momenta where gradients are exchanged from then on.

        Raises:
            ValueError: Ranks ask for different plans, or the plan does not fit the optimizer. Nothing has changed.

        """
        self.catch_up()
        self._lane.drain()
        plan = self._held.resolve(plan_from(what, self.optimizer))
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
        """Put a plan in force on trial: until `trial.end()` what it raises is noted. Collective."""
        self._lane.drain()
        self.trial.begin(self._module, self._held.optimizers, self._exchanger.owed)
        with self.trial.noting():
            self.switch(plan)

    def undo(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one whose trial has failed, and all else back. Collective, on all ranks."""
        with self.trial.noting():
            self._lane.drain()
        with self.trial.noting():
            self._made.close()
        self._put_in_force(plan, self._maker.make(plan, None, self._arrivals.step, compares=False))
        self._exchanger.owed.update(self.trial.owed)
        self.trial.restore()

    def adopt(self, plan: SyncPlan) -> None:
        """Put a plan in force for good: until `trial.end()` what it raises is noted. Collective."""
        self._lane.drain()
        self.trial.guard(self._module, self._held.optimizers)
        with self.trial.noting():
            self.switch(plan)

    def fall_back(self, plan: SyncPlan) -> None:
        """Put a plan in force in place of one that was adopted and has failed. Collective, on all ranks.

        Weights and optimizer states are then those of the first rank of those that have most steps in them; where ranks
        had weights of their own, their mean. What the plan still owes is forgotten: nobody knows what is in it.
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
        nodes = made.exchanger.store.nodes
        self._source.put_in_force(plan, nodes, differ=made.ranks_differ, parts=made.parts)
