"""One bucket's way through its algorithms, with what may go wrong said in full."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import AcceptsPrescaled, Deferred, RatioSetting, StepContext
from pliant.codecs import all_finite, first_nonfinite, scale_and_check
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.bucket_layout import BucketLayout, BucketPart, split_bucket
from pliant.engine.comms import Comms
from pliant.engine.rank_checks import describe_failure
from pliant.engine.sparse_gradients import average_rows, has_finite_rows
from pliant.spec import DecoupledMomentum

__all__ = ["GradientExchange", "NonFinite", "NonFiniteGradientError"]

NonFinite = Literal["raise", "propagate"]


class NonFiniteGradientError(FloatingPointError):
    """A gradient holds NaN or Inf; the message names the rank, the bucket and the parameter.

    Raised on every rank, or, where gradients are not exchanged, on the rank that has it.
    """

    of_plan = False
    """Whether all ranks' gradients were finite, and what the plan has made of them is not."""


class GradientExchange:
    """Carries out a plan on flat buffers. Called in the comm thread, except for `layout_of` and `check_finite`.

    Args:
        store: Nodes and state of all parameters.
        comms: Who talks, for nodes that need hosts and for those that do not.
        nonfinite: 'raise' checks every bucket before and after; 'propagate' lets NaN and Inf through to all ranks,
            as DDP does, for GradScaler to find.
        optimizer: Whose learning rates algorithms may want to know.
        owed: Gradients per parameter that an earlier plan left; added once to the next exchange.

    """

    def __init__(
        self,
        store: AlgorithmState,
        comms: Comms,
        nonfinite: NonFinite,
        optimizer: Optimizer,
        owed: dict[str, Tensor],
    ) -> None:
        self.store = store
        self._comms = comms
        self._nonfinite = nonfinite
        self.owed = owed
        """Parameter -> gradient that an earlier plan has left, until it is paid."""
        self._optimizer = optimizer
        self._device = next(iter(store.parameters.values())).device
        self._layouts: dict[int, BucketLayout] = {}
        self.ratio_setting: RatioSetting | None = None
        """Of the controller, where a node has a target."""
        self._bad_before: dict[str, int] = {}
        """Bucket -> what `check_finite` has found in gradients that are exchanged later."""
        self._refused: NonFiniteGradientError | None = None
        self._undoes = nonfinite == "propagate" and store.keeps_gradients
        """Whether steps may be skipped, and something is kept that must not know of them."""
        self._spoiled = False
        """Whether a result of this backward pass was not finite."""
        self._was_spoiled = False
        """Whether the one before was."""
        self._paid: dict[str, Tensor] = {}

    def layout_of(
        self, index: int, names: Sequence[str], shapes: Sequence[tuple[int, ...]], buffer: Tensor
    ) -> BucketLayout:
        """Return how a bucket is split, laid out anew when DDP has changed what it holds."""
        if not self.knows(index, names):
            moved = set(names)
            self._layouts = {k: v for k, v in self._layouts.items() if moved.isdisjoint(v.names)}
            self._layouts[index] = split_bucket(index, names, shapes, buffer, self.store, self._comms)
        return self._layouts[index]

    def knows(self, index: int, names: Sequence[str]) -> bool:
        """Say whether a bucket is laid out and still holds these parameters."""
        return index in self._layouts and self._layouts[index].names == tuple(names)

    @property
    def layout(self) -> dict[int, tuple[str, ...]]:
        """Which parameters lie in which bucket, in order; empty before the first exchange."""
        return {index: bucket.names for index, bucket in self._layouts.items()}

    def check_finite(self, bucket: BucketLayout, buffer: Tensor) -> int:
        """Return the index of the first NaN or Inf in buffer, (numel,); -1 if there is none or nobody asks.

        Where the bucket is exchanged in shares, the buffer is divided by the number of ranks on the way. Of a sparse
        gradient it is 0 if there is any.
        """
        if buffer.is_sparse:
            return -1 if self._nonfinite == "propagate" or has_finite_rows(buffer) else 0
        if bucket.prescaled:
            finite = scale_and_check(buffer, 1 / self._comms.all.size)
        else:
            finite = self._nonfinite == "propagate" or all_finite(buffer)
        return -1 if finite or self._nonfinite == "propagate" else first_nonfinite(buffer)

    def run(
        self, bucket: BucketLayout, buffer: Tensor, bad: int, *, step: int, num_backwards: int
    ) -> list[tuple[str, Deferred]]:
        """Replace the local gradients in buffer, (numel,), by what the optimizer shall use; bad as `check_finite` says.

        Returns what is left to do when all buckets have been handed over, under the bucket's name. A gradient that is
        not finite stops nothing, so that state stays whole and DDP can go on: `pop_error` tells of it.
        """
        deferred: list[tuple[str, Deferred]] = []
        if buffer.is_sparse:
            self._run_sparse(bucket, buffer, bad, step)
            return deferred
        if bad >= 0:
            buffer.fill_(torch.nan)  # so that whatever codecs keep of it, every rank sees it
        before = self._bad_before.pop(bucket.name, -1)
        if any(part.timing_at(step).delay_steps for part in bucket.parts):
            bad, self._bad_before[bucket.name] = before, bad
        elif any((step + 1) % part.timing_at(step).period for part in bucket.parts if not part.node.exchanges_weights):
            bad = self._bad_before[bucket.name] = max(bad, before)  # gathered, for a later step to exchange
        else:
            bad = max(bad, before)
        for part in bucket.parts:
            part.load(buffer)
            if self._undoes:
                part.undo.begin(step)
            if self.owed:
                self._pay(part, 1 / self._comms.all.size if bucket.prescaled else 1.0)
            if self._comms.all.size > 1 or part.acts_alone:
                seed = num_backwards << 32 | zlib.crc32(part.bucket.spans[0].name.encode())
                lr = max(float(group.get("lr", 0.0)) for group in self._optimizer.param_groups)
                context = StepContext(
                    step=step, seed=seed, lr=lr, ratio_setting=self.ratio_setting if part.node.ratio_target else None
                )
                rest = self._run_part(part, context, prescaled=bucket.prescaled)
                deferred += [(bucket.name, rest)] if rest is not None else []
                if self._nonfinite == "raise" and not self._sound(part):
                    self._blame(bucket, bad)
            else:
                self.record_nonfinite(bucket, bad)
            if self._undoes or self._paid:
                self._spoiled = self._spoiled or not all_finite(part.bucket.flat)
            part.save(buffer)
        return deferred

    def end_pass(self) -> None:
        """Undo what has been done to the state in a step that a GradScaler skips; before what is left to do."""
        if self._spoiled:
            for part in (part for bucket in self._layouts.values() for part in bucket.parts):
                part.undo.restore()
            self.owed.update(self._paid)
        self._paid.clear()
        self._was_spoiled, self._spoiled = self._spoiled, False

    def owes(self, name: str) -> bool:
        """Say whether a result may have something of earlier steps in it that a parameter's optimizer has not seen.

        Not where results are no mean of gradients, or of one rank alone; nor of what an earlier plan has left.
        """
        node = self.store.nodes[name]
        if node.kind != "gradients" or node.has_owners:
            return False
        if isinstance(node.core, DecoupledMomentum) and node.core.signed:
            return False
        gathers = node.timing.period > 1 or node.timing.delay_steps > 0
        return gathers or node.error_feedback in ("worker", "both")

    def take_back(self, results: Mapping[str, Tensor]) -> None:
        """Keep results that do not reach the optimizer, parameter -> result, as what this rank owes; after the pass."""
        if self._was_spoiled:
            return
        for name, result in results.items():
            slots = self.store.tensors[name]
            if "residual" in slots:
                slots["residual"].add_(result)
            else:
                self.owed[name] = self.owed[name] + result if name in self.owed else result

    def rescale(self, factor: float) -> None:
        """Let what is kept of gradients follow a loss scale that has changed."""
        for tensor in (*self.store.of_gradients(), *self.owed.values()):
            tensor.mul_(factor)

    def drop_owed(self) -> None:
        """Forget the gradients that an earlier plan left."""
        self.owed.clear()

    def pop_error(self) -> NonFiniteGradientError | None:
        """Return, once, what is to be raised for the first gradient that was not finite; with the comm thread
        drained.
        """
        refused, self._refused = self._refused, None
        return refused

    def record_nonfinite(self, bucket: BucketLayout, bad: int) -> None:
        """Note a gradient that stays here and is not finite; bad as `check_finite` says."""
        if bad >= 0 and self._nonfinite == "raise":
            self._record_error(f"rank {self._comms.all.rank}: {bucket.name}, parameter {bucket.name_at(bad)}")

    def _sound(self, part: BucketPart) -> bool:
        """Say whether a result is finite. Exact means of finite shares are, and poisoned ones are poison throughout."""
        exact = isinstance(part.algorithm, AcceptsPrescaled) and part.node.payload_codec is None
        return all_finite(part.bucket.flat[:1] if exact else part.bucket.flat)

    def _run_sparse(self, bucket: BucketLayout, gradient: Tensor, bad: int, step: int) -> None:
        """Average a sparse gradient exactly, in place: over all ranks, or, where weights are exchanged, in the host."""
        node, comm = bucket.nodes[0], self._comms.all
        if node.averages_in_host and step >= node.timing.until_step:
            comm = self._comms.by_hosts.inner
        with describe_failure(f"exchanging {bucket.name} ({bucket.names[0]} .. {bucket.names[-1]}) in step {step}"):
            founds = average_rows(gradient, bad, comm)
        if self._undoes:
            self._spoiled = self._spoiled or not has_finite_rows(gradient)
        if self._nonfinite == "raise" and not (max(founds) < 0 and has_finite_rows(gradient)):
            self._blame(bucket, bad)

    def _run_part(self, part: BucketPart, context: StepContext, *, prescaled: bool) -> Deferred | None:
        algorithm = part.algorithm
        run = algorithm.on_prescaled if prescaled and isinstance(algorithm, AcceptsPrescaled) else algorithm.on_ready
        name, spans = part.bucket.name, part.bucket.spans
        with describe_failure(f"exchanging {name} ({spans[0].name} .. {spans[-1].name}) in step {context.step}"):
            return run(part.bucket, part.state, part.comm, context)

    def _blame(self, bucket: BucketLayout, bad: int) -> None:
        """Every rank has seen a poisoned result; tell all which rank began it, and with what."""
        device = self._device
        mine = torch.tensor([bad], dtype=torch.int64, device=device)  # (1,)
        comm = self._comms.all
        all_bad = torch.empty(comm.size, dtype=torch.int64, device=device)  # (size,)
        comm.all_gather(all_bad, mine).wait()
        culprits = [(rank, index) for rank, index in enumerate(all_bad.tolist()) if index >= 0]
        if not culprits:
            who = f"every rank's gradient was finite, but their sum in {bucket.name} overflowed"
        else:
            who = "; ".join(f"rank {r}: {bucket.name}, parameter {bucket.name_at(i)}" for r, i in culprits)
        self._record_error(who, of_plan=not culprits)

    def _record_error(self, who: str, *, of_plan: bool = False) -> None:
        if self._refused is None or (self._refused.of_plan and not of_plan):
            self._refused = NonFiniteGradientError(
                f"a gradient is NaN or Inf ({who}). No weight was changed. Lower the learning rate or clip; "
                'with a GradScaler, which expects this, pass nonfinite="propagate".'
            )
            self._refused.of_plan = of_plan

    def _pay(self, part: BucketPart, weight: float) -> None:
        for span in part.bucket.spans:
            if (debt := self.owed.pop(span.name, None)) is not None:
                part.bucket.view(span).add_(debt, alpha=weight)
                if self._nonfinite == "propagate":
                    self._paid[span.name] = debt
