"""Buckets on their way from DDP through the lane and back, one backward pass after another."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pliant.algorithms.base import Deferred
from pliant.buckets import as_real
from pliant.codecs import all_finite
from pliant.comm.ddp_private import after_backward, in_backward
from pliant.engine.exchange import GradientExchange, NonFiniteGradientError
from pliant.engine.front import ReadyBucket, finish
from pliant.engine.lane import CommThread, TaskHandle
from pliant.engine.lossscale import LossScale
from pliant.engine.resume import ResumePoint, SavedLayout
from pliant.engine.sources import GradientSource
from pliant.engine.tape import Tracer
from pliant.engine.trial import PlanOnTrial

__all__ = ["Arrivals"]


class Arrivals:
    """Takes buckets in DDP's order and has the exchanger in force work on them in the lane.

    Args:
        lane: Where exchanges happen.
        tape: Where waiting is noted.
        trial: Who notes errors of a plan that is on trial.

    """

    def __init__(self, lane: CommThread, tape: Tracer, trial: PlanOnTrial) -> None:
        self._lane, self._tape, self._trial = lane, tape, trial
        self.source = GradientSource()
        """Who hands the buckets over."""
        self.step = 0
        """Optimizer steps made."""
        self.turn = 0
        """Backward passes exchanged so far: what random numbers are drawn from."""
        self.as_saved: SavedLayout | None = None
        """How passes are laid out as long as a new DDP's buckets are provisional; None: as they come."""
        self._held: list[ReadyBucket] = []
        self._rests: list[tuple[str, Deferred]] = []
        self._handed_over: TaskHandle | None = None
        self._of_pass: list[ReadyBucket] = []
        self.scale = LossScale()
        self.overflowed = False
        """Whether gradients that stay with this rank were not finite, before its first step."""
        self._begun = False
        self.broken_off = False
        """Whether a pass has begun of which DDP has not come to the end: something was raised in it."""
        self._weight = 1.0
        """What to multiply a mean over all ranks by."""

    def put_in_force(self, exchanger: GradientExchange, *, as_ready: bool) -> None:
        """Let an exchanger do the work from now on; it begins with a bucket as soon as that is ready, or with the last.

        Called between two steps, with the lane drained.
        """
        self._exchanger, self._as_ready, self.as_saved = exchanger, as_ready, None
        self.forget()  # what a plan has left that has failed in a trial

    def forget(self) -> None:
        """Forget a pass that was broken off."""
        self._held, self._rests, self._of_pass, self._begun, self.broken_off = [], [], [], False, False

    def settle(self) -> None:
        """Take the next passes in the buckets in which they come."""
        self.as_saved = None

    def resume(self, resumed: ResumePoint) -> None:
        """Go on where a saved run stood; the next passes are laid out in its buckets."""
        self.step, self.turn, self.as_saved = resumed.step, resumed.turn, resumed.layout

    def begin(self) -> None:
        """Note that a pass hands over gradients, unless it has done so before. Runs in the autograd thread."""
        if not self._begun:
            self._begun = self.broken_off = True
            self._weight = self.source.meet()
            self.follow_scale()

    def receive(self, arrival: ReadyBucket) -> None:
        """Take a bucket whose gradients are complete. Runs in the autograd thread."""
        self.begin()
        self._held.append(arrival)
        if self.source.looks_for_unused:
            self._of_pass.append(arrival)
        if arrival.last or (self._as_ready and self.as_saved is None):
            held, self._held = self._held, []
            if self.as_saved is not None:
                self._submit_as_saved(held, self.as_saved)
            else:
                for each in held:
                    self._submit(each)
        if arrival.last:
            self.complete()
            if in_backward():  # when the whole of it is done, before DDP hands the buckets over
                after_backward(self._wait)
            else:  # DDP's join() stands in for the backward pass of a rank that has run out of batches
                self._wait()
                self.broken_off = False
                self._raise_refusal()

    def complete(self) -> None:
        """Note that a pass has handed over its last gradients."""
        self._begun = False
        self.source.completed()
        self.turn += 1
        rests, self._rests = self._rests, []
        self._lane.submit(self._exchanger.end_pass)
        self._lane.submit_all(rests, step=self.step)

    def take_refusal(self) -> NonFiniteGradientError | None:
        """Return, once, why gradients that were exchanged must not be used; with the lane drained."""
        return self._exchanger.take_refusal()

    def follow_scale(self) -> None:
        """Bring what is kept of gradients into the scale of now."""
        if (factor := self.scale.change()) != 1.0:
            exchanger = self._exchanger
            self._lane.submit(lambda: exchanger.rescale(factor))

    def _submit(self, arrival: ReadyBucket) -> None:
        with self._trial.noting():
            self._exchange(arrival)
            return
        arrival.finish()  # so that DDP comes to the end of its pass

    def _exchange(self, arrival: ReadyBucket) -> None:
        if not self._exchanger.knows(arrival.index, arrival.names):
            self._lane.drain()  # what is on its way writes into the state that is about to move
        bucket = self._exchanger.laid_out(arrival.index, arrival.names, arrival.shapes, arrival.buffer)
        # Here, since the lane may be what everybody waits for; unless it is the lane that puts gradients there.
        bad = self._exchanger.inspect(bucket, arrival.buffer) if arrival.filled else -1
        exchanger, step, turn, rests, weight = self._exchanger, self.step, self.turn, self._rests, self._weight
        if bucket.stays(step) and not arrival.filled:
            return  # they stay where they are; who hands them over looks at them
        if bucket.stays(step):
            self.overflowed |= self.scale.is_sought and not arrival.buffer.is_sparse and not all_finite(arrival.buffer)
            exchanger.refuse(bucket, bad)
            arrival.finish()
            return

        def task() -> None:
            found = bad if arrival.filled else exchanger.inspect(bucket, arrival.buffer)
            rests.extend(exchanger.run(bucket, arrival.buffer, found, step=step, turn=turn))
            if weight != 1.0:
                arrival.buffer.mul_(weight)

        self._handed_over = self._lane.submit(task, done=arrival.finish, name=bucket.name, step=step)

    def _submit_as_saved(self, arrivals: list[ReadyBucket], as_saved: SavedLayout) -> None:
        exchanger, step, turn, rests = self._exchanger, self.step, self.turn, self._rests

        def task() -> None:
            rests.extend(as_saved.run(arrivals, exchanger, step=step, turn=turn))

        self._handed_over = self._lane.submit(task, lambda: finish(arrivals), name="as saved", step=step)

    def _wait(self) -> None:
        with self._trial.noting(), self._tape.waiting():
            if self._handed_over is not None:
                self._handed_over.wait()
        if in_backward():
            after_backward(self._end_pass)  # behind DDP's own, so that its reducer is whole for the next batch

    def _end_pass(self) -> None:
        of_pass, self._of_pass, self.broken_off = self._of_pass, [], False
        with self._trial.noting():
            if of_pass and (unused := self.source.unused()):
                self._take_back(of_pass, unused)
        self._raise_refusal()

    def _take_back(self, arrivals: Sequence[ReadyBucket], unused: Mapping[str, Tensor]) -> None:
        """Keep what was exchanged for parameters that no rank has used, since DDP does not hand it on.

        If such a parameter has a gradient of an earlier pass, that was exchanged again, and keeps it.
        """
        results: dict[str, Tensor] = {}
        for arrival in (each for each in arrivals if not each.buffer.is_sparse):
            numels = [torch.Size(shape).numel() for shape in arrival.shapes]
            for name, shape, part in zip(arrival.names, arrival.shapes, arrival.buffer.split(numels), strict=True):
                if name not in unused or not all_finite(part) or not self._exchanger.owes(name):
                    continue
                result, before = part.to(torch.float32, copy=True).view(shape), unused[name].grad
                if before is not None and not before.is_sparse:
                    result -= as_real(before)
                if bool(result.any()):
                    results[name] = result
        exchanger = self._exchanger
        if results:
            self._lane.submit(lambda: exchanger.take_back(results))

    def _raise_refusal(self) -> None:
        if (refused := self._exchanger.take_refusal()) is not None:
            with self._trial.noting():
                raise refused
