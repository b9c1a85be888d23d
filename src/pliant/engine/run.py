"""A run: one model, one optimizer, one plan in force."""

import functools
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from torch import Tensor
from torch.optim import Optimizer

from pliant.comm.recorded import RecordedComm
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.arrivals import Arrivals
from pliant.engine.attached import AttachedRecording, AttachedTuner
from pliant.engine.doing import LEAVING, Doing, layout_hash
from pliant.engine.ending import tell_destroyed
from pliant.engine.exchange import NonFinite
from pliant.engine.felt import Curvature
from pliant.engine.front import attach
from pliant.engine.gate import RelaxedModel, release
from pliant.engine.joining import Joining
from pliant.engine.keeping import KeepsState
from pliant.engine.lane import CommThread
from pliant.engine.making import ExecutorBuilder
from pliant.engine.means import join, mean_model
from pliant.engine.start import steps_taken
from pliant.engine.stats import RunStats
from pliant.engine.stepping import Stepping, refuse_turns
from pliant.engine.switching import SwitchesPlans
from pliant.engine.tape import Tracer
from pliant.engine.trial import PlanOnTrial
from pliant.engine.watch import UnusedParameterCheck
from pliant.spec import SyncPlan

__all__ = ["Run"]


class Run(KeepsState, SwitchesPlans):
    """A relaxed training, as `relax` returns it. Use it as a context manager, or call close()."""

    def __init__(
        self,
        held: RelaxedModel,
        plan: SyncPlan,
        *,
        comm: RecordedComm,
        hosts: Sequence[Sequence[int]] | None,
        agreement_every: int,
        nonfinite: NonFinite,
    ) -> None:
        self._held, self.model, self.optimizer = held, held.called, held.optimizer
        self._ddp, self._module = held.ddp, held.module
        self._front = attach(held.ddp) if held.ddp is not None else None
        self._comm, self._agreement = comm, ReplicaCheck(agreement_every, comm)
        self._parameters = held.parameters
        self._device = next(iter(self._parameters.values())).device
        self.tape = Tracer(self._device, comm)
        self.tape.ending.watch(self)
        self.recording: AttachedRecording | None = None  # writes down what happens
        self.trial = PlanOnTrial()  # of a plan that "auto" tries
        self._maker = ExecutorBuilder(held, self.tape, hosts=hosts, nonfinite=nonfinite)
        self._shares_buffers = self._ddp is not None and bool(self._ddp.broadcast_buffers)
        made = self._maker.make(plan, None, steps_taken(held.optimizer))
        self._lane = CommThread(self._device, "pliant-lane", self.tape)
        self._watch = UnusedParameterCheck.of(held, self._begin_pass)
        self._arrivals = Arrivals(self._lane, self.tape, self._watch, self.trial)
        self._arrivals.step = steps_taken(held.optimizer)
        self._put_in_force(plan, made)
        if self._front is not None and held.ddp is not None:
            if held.ddp.find_unused_parameters and not held.ddp.static_graph:
                self._arrivals.unused = functools.partial(self._front.unused, held.ddp)
            self._arrivals.joining = Joining(
                comm, self._lane, held.optimizers, self._arrivals, self._keeps_from_joining
            )
            self._front.receive, self._front.joining = self._arrivals.receive, self._arrivals.joining
        self._stepping = Stepping(
            held.optimizer,
            before=self.trial.noted(self._before_step),
            after=self.trial.noted(self._share),
            complete=lambda: self._after_step(),
            passes=lambda: self._arrivals.turn,
            in_turns=lambda: refuse_turns(self._exchanger, nonfinite),
        )
        self._complete = lambda: self._after_step()
        self._open = True
        self.pilot: AttachedTuner | None = None  # chooses the plan, with "auto"

    # - The moments

    def _begin_pass(self) -> None:
        if self._arrivals.broken_off and self._front is not None and self._ddp is not None:
            self._lane.drain()
            self._arrivals.forget()
            self._front.renew(self._ddp)
        self.catch_up()

    def _before_step(self, optimizer: Optimizer) -> None:
        self._lane.raise_error()
        self._arrivals.scale.notice(self._exchanger.store, self._arrivals.turn)
        self.catch_up()
        if self._watch is not None:
            nodes, step = self._exchanger.store.nodes, self._arrivals.step
            self._watch.demand_complete(lambda name: not nodes[name].leaves_gradients(step))
        if self._served is not None:
            with self.tape.waiting():
                self._served.step(optimizer, self._arrivals.step)
        elif self._owned is not None:
            self._owned.before_step(optimizer)

    def _share(self, optimizer: Optimizer) -> None:
        """Follow an optimizer that has stepped what this rank owns."""
        if self._watch is not None:
            self._watch.end_step()
        if self._owned is not None and self._served is None:
            share, made = self._owned.share, self._arrivals.step + 1
            with self.tape.waiting():
                self._lane.submit(lambda: share(optimizer, made), name="new weights", step=made - 1).wait()

    def _after_step(self) -> None:
        self._arrivals.step += 1
        with self.trial.noting():
            self._finish_step()
        self.trial.restore()
        if self.pilot is not None:
            self.pilot.after_step()

    def _finish_step(self) -> None:
        joins = self._arrivals.joining is not None and self._arrivals.joining.on
        if self._front is not None and self._ddp is not None and not joins and self._front.settle(self._ddp):
            self._arrivals.as_saved = None
        if self._weights is not None:
            with self.tape.waiting():
                self._weights.after_step(self._arrivals.step)
        if not joins and not self.trial.is_on:  # else ranks need not come to it together
            nodes = self._exchanger.store.nodes
            equal = {n: p for n, p in self._parameters.items() if not nodes[n].weights_may_diverge}
            self._agreement.after_step(equal, self._doing, self._lane)
        self._made.after_step(self._arrivals.step, self._lane)

    @property
    def _doing(self) -> Doing:
        if self.trial.why:
            return LEAVING
        step, turn, layout = self._arrivals.step, self._arrivals.turn, layout_hash(self._exchanger.layout)
        return Doing(step=step, turn=turn, plan=self._plan_number, layout=layout)

    def _keeps_from_joining(self) -> str:
        return self._made.keeps_from_joining if self.pilot is None else "auto measures all ranks in every step"

    # - The face

    @property
    def steps(self) -> int:
        """Optimizer steps made, those before the run included if the optimizer counts."""
        return self._arrivals.step

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that train."""
        return tuple(range(self._comm.size))

    @property
    def curvature(self) -> Curvature:
        """Curvature of the loss that algorithms have asked for, layer by layer."""
        return self._maker.curvature

    def stats(self) -> RunStats:
        """Return what the run has cost on this rank. No communication."""
        busy_s = self._lane.busy_s + (self._weights.busy_s if self._weights is not None else 0.0)
        return RunStats(
            steps=self._arrivals.step,
            exchanges=self._arrivals.turn,
            sent_bytes=self._comm.sent_bytes,
            received_bytes=self._comm.received_bytes,
            exposed_s=self.tape.exposed_s,
            exchange_s=busy_s,
            codec_s=max(0.0, busy_s - self._comm.wait_s),
            consensus_distance=self._weights.distance if self._weights is not None else 0.0,
            residual_norm=self._exchanger.store.norm("residual"),
            last_agreement_step=self._agreement.last_step,
            curvature_s=self.curvature.seconds,
            ratio=self._made.ratio,
        )

    def consolidate(self) -> dict[str, Tensor]:
        """Return the model to evaluate or export, with the names of the module's state_dict. Collective.

        The mean over ranks of parameters and floating-point buffers where they differ, else rank 0's. Nothing changes.
        """
        self.catch_up()
        self._lane.drain()
        if self._served is not None:
            self._served.finish()
        return mean_model(self._module, self._comm, differ=self._made.apart)

    def count(self, work: float) -> None:
        """Say how much this rank has done since it last said so, such as samples: for plans that weigh ranks by it."""
        if self._weights is not None:
            self._weights.count(work)

    def close(self) -> None:
        """Finish what is in flight and remove every hook; the model is then an ordinary DDP model again.

        Weights and momenta that differ between ranks become their mean, and optimizer state divided among owners whole,
        which is collective: a `with` block that ends in an error leaves both as they are. Raises what nothing has
        raised yet, and ReplicasDisagreeError if any parameters still differ. A second call does nothing.

        Raises:
            RuntimeError: The process group was destroyed before, and ranks are left with different states.

        """
        if not self._open or self.tape.ending.over:
            return
        if self._comm.is_destroyed:
            self._let_go(broken=True)
            tell_destroyed(left_apart=self._weights is not None or self._owned is not None)
            return
        try:
            self.catch_up()
            if self.pilot is not None:
                self.pilot.land()
            with self.trial.noting():
                self._end_plan()
            if self.pilot is not None:
                self.pilot.end_plan()
            self._agreement.at_end(self._parameters, self._arrivals.step)
        except BaseException:
            self._let_go(broken=True)
            raise
        self._let_go()

    def _end_plan(self) -> None:
        self._lane.drain()
        if self._weights is not None:
            self._weights.finish(self._arrivals.step)
            nodes = self._exchanger.store.nodes.items()
            join([self._parameters[n] for n, node in nodes if node.exchanges_weights], self.optimizer, self._comm)
        self._made.hand_back()

    def _let_go(self, *, broken: bool = False) -> None:
        """End what is local; a run that is broken off hangs up first, so that nobody waits, here or elsewhere."""
        if not self._open:
            return
        self._open = False
        self._stepping.close()
        release(self._held)
        if self._ddp is not None and self._front is not None:
            self._front.receive, self._ddp.broadcast_buffers = None, self._shares_buffers
            if self._arrivals.broken_off:
                self._front.renew(self._ddp)
        if self._served is not None:
            self._served.abandon()
        if broken:
            self.tape.ending.break_off()
        for each in (self.pilot, self.recording, self._watch, self._weights, self._made.feeler):
            if each is not None:
                each.close()
        self._lane.close()
        self.tape.ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close() if error is None else self._let_go(broken=True)
