"""Run: a training in progress, with one model, its optimizers and one plan in force."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.comm.recorded import RecordedComm
from pliant.comm.torch_errors import Report, report_nothing
from pliant.engine.agreement import ReplicaCheck
from pliant.engine.attachments import AttachedProfile, AttachedTuner, KeepsPlan, RecordsNothing
from pliant.engine.averaging import average_run
from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.curvature_requests import Curvature
from pliant.engine.executor import ExecutorBuilder
from pliant.engine.front_end import gradient_source
from pliant.engine.gradient_exchange import NonFinite
from pliant.engine.initial_sync import steps_taken
from pliant.engine.joining import JoinState
from pliant.engine.measuring import MeasuresSteps
from pliant.engine.parts import Part
from pliant.engine.relaxed_model import RelaxedModel, release
from pliant.engine.saving_parts import SavesParts
from pliant.engine.shutdown import warn_destroyed
from pliant.engine.step_counts import LEAVING, StepCounts, hash_of_layout
from pliant.engine.step_hooks import StepHooks, require_one_optimizer_pass
from pliant.engine.step_log import StepLog
from pliant.engine.step_meter import StepPace
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial
from pliant.engine.unused_parameters import FrozenParameters, begin_anew
from pliant.spec import SyncPlan

__all__ = ["FixedRun", "Run"]


class Run(SavesParts, MeasuresSteps, ABC):
    """A relaxed training, as `relax` returns it. Use it as a context manager, or call close()."""

    def __init__(
        self,
        relaxed: RelaxedModel,
        plan: SyncPlan,
        *,
        comm: RecordedComm,
        hosts: Sequence[Sequence[int]] | None,
        rack: str = "",
        agreement_every: int,
        nonfinite: NonFinite,
    ) -> None:
        self._relaxed, self.model, self.optimizer = relaxed, relaxed.called, relaxed.optimizer
        self._module, self._parameters, self._comm = relaxed.module, relaxed.parameters, comm
        self._agreement = ReplicaCheck(agreement_every, relaxed.replicas(comm))
        self._device = next(iter(self._parameters.values())).device
        self.tracer = Tracer(self._device, comm)
        self.tracer.shutdown.watch(self)
        self.profile: AttachedProfile = RecordsNothing()
        """Recording of steps, once `pliant.profile` was called."""
        self.tuner: AttachedTuner = KeepsPlan()
        """Tuner that chooses the plan, with "auto"."""
        self.report_lost: Report = report_nothing
        """Names the lost rank when communication fails that torch does itself, in the block of a `with`."""
        self._logs: list[StepLog] = []
        self._pace = StepPace()
        self.trial = PlanOnTrial()  # of a plan that "auto" tries
        num_stages = 3 if is_accelerator(self._device) and not comm.is_in_order else 1
        self._comm_thread = CommThread(self._device, "pliant-lane", self.tracer, num_stages)
        self._executor_builder = ExecutorBuilder(
            relaxed, self.tracer, self._comm_thread, hosts=hosts, rack=rack, nonfinite=nonfinite
        )
        executor = self._executor_builder.make(plan, None, steps_taken(relaxed.optimizer))
        self._dispatcher = BucketDispatcher(self._comm_thread, self.tracer, self.trial)
        self._dispatcher.step = steps_taken(relaxed.optimizer)
        joining = JoinState(comm, self._comm_thread, relaxed.optimizers, self._dispatcher, self._keeps_from_joining)
        self._source = self._dispatcher.source = gradient_source(
            relaxed, self._dispatcher, self._begin_pass, joining, self._comm_thread, self.tracer, self.trial
        )
        self._put_in_force(plan, executor)
        cure = begin_anew(wrapped=relaxed.ddp is not None, wrapped_here=relaxed.wrapped_here)
        self._frozen = FrozenParameters(relaxed.module, cure)
        self._step_hooks = StepHooks(
            relaxed.optimizer,
            before=self.trial.has_caught(self._before_step),
            after=self.trial.has_caught(self._optimizer_stepped),
            complete=lambda: self._after_step(),
            passes=lambda: self._dispatcher.num_backwards,
            in_turns=lambda: require_one_optimizer_pass(self._gradients, nonfinite),
            catch_up=lambda: self.catch_up(),
        )
        self._open = True

    # - The moments

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (self._source, *self._executor.parts)

    def _begin_pass(self) -> None:
        self._source.begin_pass(self._comm_thread.drain)
        self._dispatcher.raise_late_error()
        self.catch_up()

    def _before_step(self, optimizer: Optimizer) -> None:
        self.require_own_weights("an optimizer's step")
        self._frozen.require_frozen(optimizer)
        self._comm_thread.raise_error()
        self._dispatcher.raise_late_error()
        passes = max(self._dispatcher.num_backwards, self._source.num_passes)
        self._dispatcher.scale.notice(self._gradients.store, passes)
        self.catch_up()
        self._dispatcher.scale.watch(optimizer)
        for part in self._parts:
            part.before_step(optimizer, self._dispatcher.step)

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        for part in self._parts:
            part.optimizer_stepped(optimizer, self._dispatcher.step)

    def _after_step(self) -> None:
        self._dispatcher.step += 1
        with self.trial.catch_errors():
            self._compare()
            for part in self._parts:
                part.after_step(self._dispatcher.step)
        self.trial.restore()
        self._measure_step(self._dispatcher.step)
        self.tuner.after_step(self._dispatcher.step)

    def _compare(self) -> None:
        if self._source.joins or self.trial.is_on:
            return  # ranks need not come to it together
        self._agreement.after_step(self._equal, self._counts, self._comm_thread)

    def _equal(self) -> dict[str, Tensor]:
        nodes = self._gradients.store.nodes
        return {n: p for n, p in self._parameters.items() if not nodes[n].weights_may_diverge}

    def _counts(self) -> StepCounts:
        if self.trial.why:
            return LEAVING
        step, num_backwards, layout = (
            self._dispatcher.step,
            self._dispatcher.num_backwards,
            hash_of_layout(self._gradients.layout),
        )
        return StepCounts(step=step, num_backwards=num_backwards, plan=self._plan_number, layout=layout)

    def _keeps_from_joining(self) -> str:
        return self.tuner.keeps_from_joining or self._executor.keeps_from_joining

    # - The face

    @property
    def steps(self) -> int:
        """Optimizer steps made, those before the run included if the optimizer counts."""
        return self._dispatcher.step

    @property
    def is_open(self) -> bool:
        """Whether the run goes on: it was neither closed nor broken off."""
        return self._open

    @property
    @abstractmethod
    def members(self) -> tuple[int, ...]:
        """The ranks that train, by their numbers in the world they were started for."""

    @property
    def curvature(self) -> Curvature:
        """Samples of the curvature that algorithms have asked for, layer by layer."""
        return self._executor_builder.curvature

    def count(self, work: float) -> None:
        """Add to this rank's work, such as samples, for plans that weight ranks by it."""
        for part in self._parts:
            part.report_work(work)

    def weights_changed(self) -> None:
        """Note that weights of a sharded model were written by hand, on all ranks; they are gathered anew."""
        self._source.weights_changed()

    def explain(self) -> str:
        """Return the plan in force, and the memory that it needs on this rank. No communication."""
        return "\n".join([str(self.plan), *(told for part in self._parts if (told := part.explain()))])

    @abstractmethod
    def close(self) -> None:
        """Finish exchanges in flight and remove every hook; the model is then an ordinary DDP model again.

        Weights and momenta that differ between ranks become their mean, and optimizer state divided among owners whole,
        which is collective; a `with` block that ends in an error leaves both as they are. A second call does nothing.

        Raises:
            RuntimeError: The process group was destroyed before, and ranks are left with different states.
            ReplicasDisagreeError: Parameters that must be equal differ.
            Exception: An error of the communication thread that was not raised before.

        """

    def _release(self, *, broken: bool = False) -> None:
        """End everything local; a run that is broken off closes its connections first, so that no rank waits."""
        if not self._open:
            return
        self._open = False
        self._step_hooks.close()
        release(self._relaxed)
        self._source.close()
        for part in self._executor.parts:
            part.abandon()
        if broken:
            self.tracer.shutdown.break_off()
        self.tuner.close()
        self.profile.close()
        self._executor.close()
        self._comm_thread.close()
        self.tracer.shutdown.close()
        self._close_logs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        lost = self.report_lost(error, "a communication of torch's own", None) if self._open else None
        self._release(broken=True)
        if lost is not None:
            raise lost from error


class FixedRun(Run):
    """A run whose ranks are the same from its beginning to its end."""

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks that train, by number."""
        return tuple(range(self._comm.size))

    def close(self) -> None:
        """Finish what is in flight, on all ranks, and remove every hook."""
        if not self._open or self.tracer.shutdown.over:
            return
        if self._comm.is_destroyed:
            self._release(broken=True)
            warn_destroyed(left_apart=self._executor.ranks_differ or bool(self._executor.owners.names))
            return
        try:
            self.catch_up()
            self.tuner.end_trial()
            with self.trial.catch_errors():
                self._end_plan()
            self.tuner.end_plan()
            self._agreement.at_end(self._parameters, self._dispatcher.step)
        except BaseException:
            self._release(broken=True)
            raise
        self._release()

    def _end_plan(self) -> None:
        self._comm_thread.drain()
        self._executor.hand_back(self._dispatcher.step)
        nodes = self._gradients.store.nodes.items()
        apart = [self._parameters[n] for n, node in nodes if node.exchanges_weights]
        average_run(apart, self._relaxed.local_optimizer, self._relaxed.replicas(self._comm))
        self._source.weights_changed()
