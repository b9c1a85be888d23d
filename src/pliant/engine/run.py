"""A run: one model, one optimizer, one plan in force."""

import math
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
from pliant.engine.front_end import gradient_source
from pliant.engine.gate import RelaxedModel, release
from pliant.engine.joining import Joining
from pliant.engine.keeping import KeepsState
from pliant.engine.lane import CommThread
from pliant.engine.making import ExecutorBuilder
from pliant.engine.means import join, mean_model
from pliant.engine.parts import Part
from pliant.engine.start import steps_taken
from pliant.engine.stats import RunStats
from pliant.engine.stepping import Stepping, refuse_turns
from pliant.engine.switching import SwitchesPlans
from pliant.engine.tape import Tracer
from pliant.engine.trial import PlanOnTrial
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
        self._module, self._parameters, self._comm = held.module, held.parameters, comm
        self._agreement = ReplicaCheck(agreement_every, held.replicas(comm))
        self._device = next(iter(self._parameters.values())).device
        self.tape = Tracer(self._device, comm)
        self.tape.ending.watch(self)
        self.recording = AttachedRecording()
        """Who writes down what happens, once `pliant.record` was called."""
        self.tuner = AttachedTuner()
        """Who chooses the plan, with "auto"."""
        self.trial = PlanOnTrial()  # of a plan that "auto" tries
        self._lane = CommThread(self._device, "pliant-lane", self.tape)
        self._maker = ExecutorBuilder(held, self.tape, self._lane, self._agreement, hosts=hosts, nonfinite=nonfinite)
        made = self._maker.make(plan, None, steps_taken(held.optimizer))
        self._arrivals = Arrivals(self._lane, self.tape, self.trial)
        self._arrivals.step = steps_taken(held.optimizer)
        joining = Joining(comm, self._lane, held.optimizers, self._arrivals, self._keeps_from_joining)
        self._source = self._arrivals.source = gradient_source(
            held, self._arrivals, self._begin_pass, joining, self._lane, self.tape, nonfinite
        )
        self._put_in_force(plan, made)
        self._stepping = Stepping(
            held.optimizer,
            before=self.trial.noted(self._before_step),
            after=self.trial.noted(self._optimizer_stepped),
            complete=lambda: self._after_step(),
            passes=lambda: self._arrivals.turn,
            in_turns=lambda: refuse_turns(self._exchanger, nonfinite),
        )
        self._complete = lambda: self._after_step()
        self._open = True

    # - The moments

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (self._source, *self._made.parts)

    def _begin_pass(self) -> None:
        self._source.begin_pass(self._lane.drain)
        self.catch_up()

    def _before_step(self, optimizer: Optimizer) -> None:
        self._lane.raise_error()
        self._arrivals.scale.notice(self._exchanger.store, self._arrivals.turn)
        self.catch_up()
        for part in self._parts:
            part.before_step(optimizer, self._arrivals.step)

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        for part in self._parts:
            part.optimizer_stepped(optimizer, self._arrivals.step)

    def _after_step(self) -> None:
        self._arrivals.step += 1
        with self.trial.noting():
            self._compare()
            for part in self._parts:
                part.after_step(self._arrivals.step)
        self.trial.restore()
        self.tuner.after_step(self._arrivals.step)

    def _compare(self) -> None:
        if self._source.joins or self.trial.is_on:
            return  # ranks need not come to it together
        nodes = self._exchanger.store.nodes
        equal = {n: p for n, p in self._parameters.items() if not nodes[n].weights_may_diverge}
        self._agreement.after_step(equal, self._doing, self._lane)

    @property
    def _doing(self) -> Doing:
        if self.trial.why:
            return LEAVING
        step, turn, layout = self._arrivals.step, self._arrivals.turn, layout_hash(self._exchanger.layout)
        return Doing(step=step, turn=turn, plan=self._plan_number, layout=layout)

    def _keeps_from_joining(self) -> str:
        return self.tuner.keeps_from_joining or self._made.keeps_from_joining

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
        of_parts: dict[str, float] = {}
        for part in self._parts:
            of_parts |= part.stats()
        busy_s = self._lane.busy_s + of_parts.get("exchange_s", 0.0)
        return RunStats(
            steps=self._arrivals.step,
            exchanges=self._arrivals.turn,
            sent_bytes=self._comm.sent_bytes,
            received_bytes=self._comm.received_bytes,
            exposed_s=self.tape.exposed_s,
            exchange_s=busy_s,
            codec_s=max(0.0, busy_s - self._comm.wait_s),
            consensus_distance=of_parts.get("consensus_distance", 0.0),
            residual_norm=math.hypot(self._exchanger.store.norm("residual"), of_parts.get("residual_norm", 0.0)),
            last_agreement_step=self._agreement.last_step,
            curvature_s=self.curvature.seconds,
            ratio=of_parts.get("ratio", 0.0),
        )

    def consolidate(self) -> dict[str, Tensor]:
        """Return the model to evaluate or export, with the names of the module's state_dict. Collective.

        The mean over ranks of parameters and floating-point buffers where they differ, else rank 0's. Nothing changes.
        """
        cure = "use torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict=True"
        self._held.require_whole("consolidate() returns a whole model", cure)
        self.catch_up()
        self._lane.drain()
        for served in self._made.served:
            served.settle(self._arrivals.step)
        return mean_model(self._module, self._comm, differ=self._made.ranks_differ)

    def count(self, work: float) -> None:
        """Say how much this rank has done since it last said so, such as samples: for plans that weigh ranks by it."""
        for part in self._parts:
            part.report_work(work)

    def weights_changed(self) -> None:
        """Say that weights of a sharded model were written by hand, on all ranks, so that they are gathered anew."""
        self._source.weights_changed()

    def explain(self) -> str:
        """Return the plan in force, and what it keeps on this rank. No communication."""
        return "\n".join([str(self.plan), *(told for part in self._parts if (told := part.explain()))])

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
            tell_destroyed(left_apart=self._made.ranks_differ or bool(self._made.owners.names))
            return
        try:
            self.catch_up()
            self.tuner.end_trial()
            with self.trial.noting():
                self._end_plan()
            self.tuner.end_plan()
            self._agreement.at_end(self._parameters, self._arrivals.step)
        except BaseException:
            self._let_go(broken=True)
            raise
        self._let_go()

    def _end_plan(self) -> None:
        self._lane.drain()
        self._made.hand_back(self._arrivals.step)
        nodes = self._exchanger.store.nodes.items()
        apart = [self._parameters[n] for n, node in nodes if node.exchanges_weights]
        join(apart, self._held.local_optimizer, self._held.replicas(self._comm))

    def _let_go(self, *, broken: bool = False) -> None:
        """End what is local; a run that is broken off hangs up first, so that nobody waits, here or elsewhere."""
        if not self._open:
            return
        self._open = False
        self._stepping.close()
        release(self._held)
        self._source.close()
        for part in self._made.parts:
            part.abandon()
        if broken:
            self.tape.ending.break_off()
        self.tuner.close()
        self.recording.close()
        self._made.close()
        self._lane.close()
        self.tape.ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close() if error is None else self._let_go(broken=True)
