"""Buckets of gradients between DDP and the communication thread, one backward pass after another."""

from collections.abc import Generator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import Deferred
from pliant.buckets import as_real
from pliant.codecs import all_finite, nonfinite
from pliant.comm.ddp_private import after_backward, is_in_backward
from pliant.engine.comm_thread import CommThread, TaskHandle
from pliant.engine.ddp_hook import ReadyBucket, complete_buckets
from pliant.engine.gradient_exchange import GradientExchange, NonFiniteGradientError
from pliant.engine.loss_scale import LossScale
from pliant.engine.rank_state import ResumePoint
from pliant.engine.saved_layout import SavedLayout
from pliant.engine.sources import GradientSource, NoGradients
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial

__all__ = ["BucketDispatcher"]


class BucketDispatcher:
    """Queue of DDP's ready buckets: submits each to the communication thread, in DDP's order.

    See Note [one order of collectives], Note [deferred work] and Note [who owns a bucket's buffer].

    Args:
        comm_thread: Communication thread of the gradients.
        tracer: Tracer that measures waiting.
        trial: Keeper of the errors of a plan on trial.

    """

    def __init__(self, comm_thread: CommThread, tracer: Tracer, trial: PlanOnTrial) -> None:
        self._comm_thread, self._tracer, self._trial = comm_thread, tracer, trial
        self.source: GradientSource = NoGradients()
        """Source of the buckets."""
        self.step = 0
        """Optimizer steps made."""
        self.num_backwards = 0
        """Backward passes exchanged so far, from which random numbers are drawn."""
        self.as_saved: SavedLayout | None = None
        """Saved layout of buckets, as long as a new DDP's are provisional; None to use DDP's."""
        self._ready: list[ReadyBucket] = []
        self._deferred: list[list[tuple[str, Deferred]]] = []
        """Work that tasks of this pass leave, in the order of their submission, which is the same on all ranks."""
        self._last_handle: TaskHandle | None = None
        self._of_pass: list[ReadyBucket] = []
        self.scale = LossScale()
        self.overflowed: bool | Tensor = False
        """Whether gradients that stay with this rank were not finite, before its first step; a flag on accelerators."""
        self._pass_handle: TaskHandle | None = None
        self._begun = False
        self.broken_off = False
        """Whether a pass has begun that DDP has not ended, since something was raised in it."""
        self._weight = 1.0
        """Factor of a mean over all ranks, where some have no batches left."""

    def put_in_force(self, gradients: GradientExchange, *, as_ready: bool) -> None:
        """Use another exchange of gradients from now on: bucket by bucket as they are ready, or all after the last.

        Called between two steps, with nothing in flight.
        """
        self._gradients, self._as_ready, self.as_saved = gradients, as_ready, None
        self.forget()  # what a plan has left that has failed in a trial

    def forget(self) -> None:
        """Forget a pass that was broken off."""
        self._ready, self._deferred, self._of_pass, self._begun, self.broken_off = [], [], [], False, False

    def settle(self) -> None:
        """Use DDP's buckets from the next pass on."""
        self.as_saved = None

    def resume(self, resumed: ResumePoint) -> None:
        """Continue at a saved run's step and pass; the next passes use its buckets."""
        self.step, self.num_backwards, self.as_saved = resumed.step, resumed.num_backwards, resumed.layout

    def begin(self) -> None:
        """Note that a pass hands over gradients, unless it has done so before. Runs in the autograd thread."""
        if not self._begun:
            self._begun = self.broken_off = True
            self._weight = self.source.meet()
            self.follow_scale()

    def receive(self, ready: ReadyBucket) -> None:
        """Take a bucket whose gradients are complete. Runs in the autograd thread."""
        self.begin()
        self._ready.append(ready)
        if self.source.looks_for_unused:
            self._of_pass.append(ready)
        if ready.last or (self._as_ready and self.as_saved is None):
            held, self._ready = self._ready, []
            if self.as_saved is not None:
                self._submit_as_saved(held, self.as_saved)
            else:
                for each in held:
                    self._submit(each)
        if ready.last:
            self.complete()
            if is_in_backward():  # when the whole of it is done, before DDP hands the buckets over
                after_backward(self._wait)
            else:  # DDP's join() stands in for the backward pass of a rank that has run out of batches
                self._wait()
                self.broken_off = False
                self._raise_error()

    def complete(self) -> None:
        """Note that a pass has handed over its last gradients."""
        self._begun = False
        self.source.on_complete()
        self.num_backwards += 1
        deferred, self._deferred = self._deferred, []
        self._pass_handle = self._comm_thread.submit(self._gradients.end_pass)
        self._comm_thread.submit_all(chain.from_iterable(deferred), step=self.step)

    def pop_error(self) -> NonFiniteGradientError | None:
        """Return, once, why gradients that were exchanged must not be used; with the comm thread drained."""
        return self._gradients.findings.pop_error()

    def raise_late_error(self) -> None:
        """Raise what passes before have found, where that becomes known only now; before a step, or before a pass.

        Collective if there is something to raise, which all ranks see alike (Note [nobody waits for flags]).
        """
        if self._pass_handle is not None:
            self._pass_handle.wait()
            self._pass_handle = None
            if (refused := self.source.pop_late_error(self._gradients.findings)) is not None:
                with self._trial.catch_errors():
                    raise refused

    def follow_scale(self) -> None:
        """Scale residuals and other kept gradients to the current loss scale."""
        if (factor := self.scale.change()) != 1.0:
            gradients = self._gradients
            self._comm_thread.submit(lambda: gradients.rescale(factor))
            self.source.rescale(factor)
        self._gradients.loss_scale = self.scale.unit or 1.0

    def _submit(self, ready: ReadyBucket) -> None:
        with self._trial.catch_errors():
            self._exchange(ready)
            return
        ready.finish()  # so that DDP comes to the end of its pass

    def _exchange(self, ready: ReadyBucket) -> None:
        if not self._gradients.knows(ready.index, ready.names):
            self._comm_thread.drain()  # what is on its way writes into the state that is about to move
        bucket = self._gradients.layout_of(ready.index, ready.names, ready.shapes, ready.buffer)
        gradients, step, num_backwards = self._gradients, self.step, self.num_backwards
        weight, keeps_local = self._weight, bucket.keeps_local(step)
        if keeps_local and not ready.filled:
            return  # they stay where they are; who hands them over looks at them
        # On a CPU here, since all may wait for the other thread; unless that thread is what fills the buffer. On an
        # accelerator there, in whose stream small kernels do not hold up those of backward.
        here = ready.filled and (keeps_local or not is_accelerator(ready.buffer.device))
        bad = gradients.check_finite(bucket, ready.buffer) if here else -1
        if keeps_local:
            if self.scale.is_sought and not ready.buffer.is_sparse:
                self.overflowed |= nonfinite(ready.buffer)
            gradients.findings.keep(bucket, bad)
            ready.finish()
            return

        deferred = self._new_deferred()

        def stages() -> Generator[None]:
            found = bad if here else gradients.check_finite(bucket, ready.buffer)
            own = yield from gradients.stages(bucket, ready.buffer, found, step=step, num_backwards=num_backwards)
            deferred.extend(own)
            if weight != 1.0:
                ready.buffer.mul_(weight)

        self._last_handle = self._comm_thread.submit_stages(stages(), ready.finish, name=bucket.name, step=step)

    def _submit_as_saved(self, buckets: list[ReadyBucket], as_saved: SavedLayout) -> None:
        gradients, step, num_backwards, deferred = self._gradients, self.step, self.num_backwards, self._new_deferred()
        weight = self._weight

        def task() -> None:
            deferred.extend(as_saved.run(buckets, gradients, step=step, num_backwards=num_backwards))
            for ready in buckets if weight != 1.0 else ():
                ready.buffer.mul_(weight)

        self._last_handle = self._comm_thread.submit(
            task, lambda: complete_buckets(buckets), name="as saved", step=step
        )

    def _new_deferred(self) -> list[tuple[str, Deferred]]:
        """Return the place for what a task leaves that is submitted now."""
        self._deferred.append([])
        return self._deferred[-1]

    def _wait(self) -> None:
        with self._trial.catch_errors(), self._tracer.record_wait():
            if self._last_handle is not None:
                self._last_handle.wait()
        if is_in_backward():
            after_backward(self._end_pass)  # behind DDP's own, so that its reducer is whole for the next batch

    def _end_pass(self) -> None:
        of_pass, self._of_pass, self.broken_off = self._of_pass, [], False
        with self._trial.catch_errors():
            if of_pass and (unused := self.source.unused_parameters()):
                self._keep_unused(of_pass, unused)
        self._raise_error()

    def _keep_unused(self, buckets: Sequence[ReadyBucket], unused: Mapping[str, Tensor]) -> None:
        """Keep results for parameters that no rank has used, since DDP does not hand them on.

        If such a parameter has a gradient of an earlier pass, that was exchanged again, and keeps it.
        """
        results: dict[str, Tensor] = {}
        for ready in (each for each in buckets if not each.buffer.is_sparse):
            numels = [torch.Size(shape).numel() for shape in ready.shapes]
            for name, shape, part in zip(ready.names, ready.shapes, ready.buffer.split(numels), strict=True):
                if name not in unused or not all_finite(part) or not self._gradients.owes(name):
                    continue
                result, before = part.to(torch.float32, copy=True).view(shape), unused[name].grad
                if before is not None and not before.is_sparse:
                    result -= as_real(before)
                if bool(result.any()):
                    results[name] = result
        gradients = self._gradients
        if results:
            self._comm_thread.submit(lambda: gradients.take_back(results))

    def _raise_error(self) -> None:
        if (refused := self._gradients.findings.pop_error()) is not None:
            with self._trial.catch_errors():
                raise refused
