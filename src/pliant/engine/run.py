"""A run: one model, one optimizer, one plan in force."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pliant.algorithms.base import Rest
from pliant.comm.recorded import RecordedComm
from pliant.engine.agreement import Agreement
from pliant.engine.choose import What, agree_on, plan_from
from pliant.engine.exchange import NonFinite
from pliant.engine.felt import Curvature
from pliant.engine.front import Arrival, attach, finish
from pliant.engine.lane import Lane, Ticket
from pliant.engine.making import InForce, Maker
from pliant.engine.means import join, mean_model
from pliant.engine.resume import LaidOutAsSaved, read_state, write_state
from pliant.engine.start import steps_taken
from pliant.engine.stats import Stats
from pliant.engine.tape import Tape
from pliant.engine.watch import BackwardWatch
from pliant.spec import SyncPlan

if TYPE_CHECKING:
    from pliant.engine.pilot import Pilot
    from pliant.engine.record import Recording

__all__ = ["Run"]


class Run:
    """What `relax` returns. Use it as a context manager, or call close()."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: SyncPlan,
        *,
        comm: RecordedComm,
        hosts: Sequence[Sequence[int]] | None,
        agreement_every: int,
        nonfinite: NonFinite,
    ) -> None:
        self.model = model
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._front = attach(self._ddp) if self._ddp is not None else None
        self._module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimizer = optimizer
        self._comm, self._agreement = comm, Agreement(agreement_every, comm)
        self._parameters = {name: p for name, p in self._module.named_parameters() if p.requires_grad}
        self._device = next(iter(self._parameters.values())).device
        self._step, self._turn = steps_taken(optimizer), 0
        self._held: list[Arrival] = []
        self._rests: list[tuple[str, Rest]] = []
        self._handed_over: Ticket | None = None
        self._as_saved: LaidOutAsSaved | None = None
        self.tape = Tape(self._device, comm)
        self.recording: Recording | None = None  # writes down what happens
        self._maker = Maker(self._module, optimizer, self._parameters, self.tape, hosts=hosts, nonfinite=nonfinite)
        self._shares_buffers = self._ddp is not None and bool(self._ddp.broadcast_buffers)
        self._put_in_force(plan, None)
        self._lane = Lane(self._device, "pliant-lane", self.tape)
        self._watch = BackwardWatch(self._ddp, self._parameters) if self._ddp is not None else None
        if self._front is not None:
            self._front.receive = self._receive
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]
        self._open = True
        self.pilot: Pilot | None = None  # chooses the plan, with "auto"

    def _put_in_force(self, plan: SyncPlan, old: InForce | None) -> None:
        self._made = made = self._maker.make(plan, old, self._step)
        self.plan, self._exchanger, self._weights = plan, made.exchanger, made.weights
        self._owned, self._served = made.owned, made.served
        if self._ddp is not None and self._front is not None:
            self._ddp.broadcast_buffers = self._shares_buffers and not made.apart
            self._front.rebucket(self._ddp, plan.bucket_bytes)

    # - The moments

    def _receive(self, arrival: Arrival) -> None:
        """A bucket's gradients are complete. Runs in the autograd thread."""
        self._held.append(arrival)
        if arrival.last or (self.plan.rules[0].choice.order == "ready" and self._as_saved is None):
            held, self._held, as_saved, self._as_saved = self._held, [], self._as_saved, None
            if as_saved is not None:
                self._submit_as_saved(held, as_saved)
            else:
                for each in held:
                    self._submit(each)
        if arrival.last:
            if self._watch is not None:
                self._watch.complete = True
            self._turn += 1
            rests, self._rests = self._rests, []
            self._lane.submit_all(rests, step=self._step)
            # Runs when the whole backward is done, before DDP hands the buckets over: errors surface in backward().
            torch.autograd.Variable._execution_engine.queue_callback(self._wait_for_exchange)  # pyright: ignore

    def _submit(self, arrival: Arrival) -> None:
        if not self._exchanger.knows(arrival.index, arrival.names):
            self._lane.drain()  # what is on its way writes into the state that is about to move
        bucket = self._exchanger.laid_out(arrival.index, arrival.names, arrival.shapes, arrival.buffer)
        bad = self._exchanger.inspect(bucket, arrival.buffer)  # here, since the lane may be what everybody waits for
        step, turn, rests = self._step, self._turn, self._rests
        if bucket.stays(step):
            self._exchanger.refuse(bucket, bad)
            arrival.finish()
            return

        def task() -> None:
            rests.extend(self._exchanger.run(bucket, arrival.buffer, bad, step=step, turn=turn))

        self._handed_over = self._lane.submit(task, done=arrival.finish, name=bucket.name, step=step)

    def _submit_as_saved(self, arrivals: list[Arrival], as_saved: LaidOutAsSaved) -> None:
        step, turn, rests = self._step, self._turn, self._rests

        def task() -> None:
            rests.extend(as_saved.run(arrivals, self._exchanger, step=step, turn=turn))

        self._handed_over = self._lane.submit(task, lambda: finish(arrivals), name="as saved", step=step)

    def _wait_for_exchange(self) -> None:
        with self.tape.waiting():
            if self._handed_over is not None:
                self._handed_over.wait()

    def _before_step(self) -> None:
        self._lane.raise_error()
        if self._watch is not None:
            self._watch.demand_complete()
        if self._served is not None:
            with self.tape.waiting():
                self._served.step(self._step)
        elif self._owned is not None:
            self._owned.before_step()

    def _after_step(self) -> None:
        self._step += 1
        with self.tape.waiting():
            if self._owned is not None and self._served is None:
                share, made = self._owned.share, self._step
                self._lane.submit(lambda: share(made), name="new weights", step=made - 1).wait()
            if self._weights is not None:
                self._weights.after_step(self._step)
        equal = {n: p for n, p in self._parameters.items() if not self._exchanger.store.choices[n].apart}
        self._agreement.after_step(equal, self._step, self._lane)
        self._made.after_step(self._step, self._lane)
        if self.pilot is not None:
            self.pilot.after_step()

    # - The face

    @property
    def steps(self) -> int:
        """Optimizer steps made, those before the run included if the optimizer counts."""
        return self._step

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that train."""
        return tuple(range(self._comm.size))

    @property
    def curvature(self) -> Curvature:
        """What algorithms that ask for it have felt of the loss, layer by layer."""
        return self._maker.curvature

    def stats(self) -> Stats:
        """Return what the run has cost on this rank. No communication."""
        busy_s = self._lane.busy_s + (self._weights.busy_s if self._weights is not None else 0.0)
        return Stats(
            steps=self._step,
            exchanges=self._turn,
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

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state as tensors under ``rank<i>``, so that ranks do not overwrite each other.

        Made for `torch.distributed.checkpoint`; `torch.save` per rank works as well. The tensors are live. Where
        weights are exchanged, a copy of this rank's own model is in it; save every rank's optimizer too, each under
        a name of its own. What owners hold of the optimizer's state is in it. At a free pace the call is collective.
        """
        self._lane.drain()
        self._made.settle(self._step)
        return write_state(self._made, self.plan, self._comm, self._module, step=self._step, turn=self._turn)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state_dict of the same plan and number of ranks, bit for bit; the last thing to load.

        Raises:
            ValueError: The state was made under another plan or number of ranks, or by another rank.

        """
        self._lane.drain()
        resumed = read_state(state, self._made, self.plan, self._comm, self._module)
        self._step, self._turn, self._as_saved = resumed.step, resumed.turn, resumed.layout

    def consolidate(self) -> dict[str, Tensor]:
        """Return the model to evaluate or export, with the names of the module's state_dict. Collective.

        The mean over ranks of parameters and floating-point buffers where they differ, else rank 0's. Nothing changes.
        """
        self._lane.drain()
        if self._served is not None:
            self._served.finish()
        return mean_model(self._module, self._comm, differ=self._made.apart)

    def count(self, work: float) -> None:
        """Say how much this rank has done since it last said so, such as samples: for plans that weigh ranks by it."""
        if self._weights is not None:
            self._weights.count(work)

    def switch(self, what: What, *, pay: bool = True) -> None:
        """Put another plan in force, on all ranks between the same two steps.

        Gradients that the old plan still owes pass to the new one: into its residual, or, unless they are not to be
        paid, into its next exchange. Weights that the old plan let differ, and the new one treats otherwise, become
        their mean over ranks; so do momenta where gradients are exchanged from then on.

        Raises:
            ValueError: Ranks ask for different plans, or the plan does not fit the optimizer. Nothing has changed.

        """
        self._lane.drain()
        plan = plan_from(what, self.optimizer)
        agree_on(plan, self._comm, self._device)
        if self._ddp is None and not plan.between_steps:
            raise ValueError(
                "this run began on a plain module with a plan that exchanges weights only, so that nobody hands over "
                "its gradients, but the new plan exchanges gradients; wrap the module in DistributedDataParallel."
            )
        if self.recording is not None:
            self.recording.end()
        self._put_in_force(plan, self._made)
        if not pay:
            self._exchanger.forgive()
        self._as_saved = None

    def close(self) -> None:
        """Finish what is in flight and remove every hook; the model is then an ordinary DDP model again.

        Weights and momenta that differ between ranks become their mean, and optimizer state divided among owners whole,
        which is collective: a `with` block that ends in an error leaves both as they are. Raises what nothing has
        raised yet. A second call does nothing.
        """
        if not self._open:
            return
        try:
            self._lane.drain()
            if self._weights is not None:
                self._weights.finish(self._step)
                choices = self._exchanger.store.choices.items()
                join([self._parameters[n] for n, own in choices if own.between_steps], self.optimizer, self._comm)
            self._made.hand_back()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if not self._open:
            return
        self._open = False
        for hook in self._hooks:
            hook.remove()
        if self._ddp is not None and self._front is not None:
            self._front.receive, self._ddp.broadcast_buffers = None, self._shares_buffers
        for each in (self.pilot, self.recording, self._watch, self._weights, self._made.feeler):
            if each is not None:
                each.close()
        if self._served is not None:
            self._served.abandon()
        self._lane.close()
        self._comm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close() if error is None else self._let_go()
