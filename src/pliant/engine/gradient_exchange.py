"""Exchange of gradients: one bucket through the executors of its parts, with checks of NaN and Inf."""

import zlib
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from functools import reduce
from operator import or_

from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator, used_here
from pliant.algorithms.base import AcceptsPrescaled, Deferred, RatioSetting, StepContext, WorksInStages
from pliant.codecs import nonfinite
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.bucket_layout import BucketLayout, BucketPart, split_bucket
from pliant.engine.comms import Comms
from pliant.engine.device_findings import DeviceFindings
from pliant.engine.nonfinite import Findings, HostFindings, NonFinite, NonFiniteGradientError, Place
from pliant.engine.rank_checks import describe_failure
from pliant.engine.sparse_gradients import RowAverage, has_finite_rows
from pliant.engine.stages import do_all, side_by_side
from pliant.spec import DecoupledMomentum
from pliant.spec.plan import SparseWay

__all__ = ["GradientExchange", "NonFinite", "NonFiniteGradientError"]


class GradientExchange:
    """Carries out a plan on flat buffers. Runs in the communication thread, except for `layout_of` and `check_finite`.

    Note [conservation]: what the optimizer has got and what is kept add up to all gradients. For each parameter,

        sum over steps of results + mean over ranks of what is kept = sum over steps of mean gradients.

    What is kept is `residual` (by error feedback), `pending` (by `Every`) and `on its way` (by `Delayed`), the slots in
    `store.OWED`, and `owed`, which an earlier plan left. So whatever drops, moves or scales one term must change
    another: `store.adopt` (another plan), `rescale` (another loss scale), `take_back` (results that DDP drops) and
    `end_pass` (a skipped step) do. Exempt are codecs without feedback, which are exact in the mean only or not at all;
    residuals that fade; momenta; and gradients that were not finite.

    Args:
        store: Nodes and state of all parameters.
        comms: Comms for nodes with levels and for those without.
        nonfinite: 'raise' checks every bucket before and after; 'propagate' lets NaN and Inf through to all ranks, as
            DDP does, for GradScaler to find.
        optimizer: Optimizer whose learning rates algorithms may read.
        owed: Gradients per parameter that an earlier plan left; added once to the next exchange.
        sparse: Way of sparse gradients.

    """

    def __init__(
        self,
        store: AlgorithmState,
        comms: Comms,
        nonfinite: NonFinite,
        optimizer: Optimizer,
        owed: dict[str, Tensor],
        sparse: SparseWay = "auto",
    ) -> None:
        self.store = store
        self._comms = comms
        self._nonfinite = nonfinite
        self.owed = owed
        """Parameter -> gradient that an earlier plan left, until it is added to an exchange."""
        self._optimizer = optimizer
        self._device = next(iter(store.parameters.values())).device
        self._layouts: dict[int, BucketLayout] = {}
        self.loss_scale = 1.0
        """Scale of the gradients of this pass."""
        self.ratio_setting: RatioSetting | None = None
        """Ratio setting of the ratio controller, where a node has a target."""
        raises, device = nonfinite == "raise", self._device
        on_device = is_accelerator(device)
        self.findings: Findings = (
            DeviceFindings(comms.all, device, raises=raises) if on_device else HostFindings(comms.all, raises=raises)
        )
        """What is not finite, and who has it."""
        self._bad_before: dict[str, Place] = {}
        """Bucket -> result of `check_finite` for gradients that are exchanged later."""
        self._undoes = nonfinite == "propagate" and store.keeps_gradients
        """Whether steps may be skipped and kept gradients must then be restored."""
        self._spoils: list[bool | Tensor] = []
        """Whether results of this backward pass were not finite; threads of several stages add to it."""
        self._was_spoiled: bool | Tensor = False
        """Whether a result of the pass before was not finite."""
        self._paid: dict[str, Tensor] = {}
        self.sparse: SparseWay = sparse
        """Way of sparse gradients."""
        self._row_averages = defaultdict[str, RowAverage](lambda: RowAverage(sparse))
        """Parameter -> mean of its sparse gradients."""

    def layout_of(
        self, index: int, names: Sequence[str], shapes: Sequence[tuple[int, ...]], buffer: Tensor
    ) -> BucketLayout:
        """Return the split of a bucket into parts, made anew when DDP has changed its content."""
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
        """Bucket -> its parameters, in order; empty before the first exchange."""
        return {index: bucket.names for index, bucket in self._layouts.items()}

    def check_finite(self, bucket: BucketLayout, buffer: Tensor) -> Place:
        """Return the place of the first NaN or Inf in buffer, (numel,); -1 if there is none or no check is wanted.

        Where all parts accept prescaled gradients, the buffer is divided by the number of ranks in the same pass. For a
        sparse gradient the index is 0 if there is any.
        """
        if buffer.is_sparse:
            return -1 if self._nonfinite == "propagate" or has_finite_rows(buffer) else 0
        return self.findings.look(buffer, 1 / self._comms.all.size if bucket.prescaled else None)

    def run(
        self, bucket: BucketLayout, buffer: Tensor, bad: Place, *, step: int, num_backwards: int
    ) -> list[tuple[str, Deferred]]:
        """Replace the local gradients in buffer, (numel,), by the results for the optimizer; bad is that of
        `check_finite`.

        Returns deferred work by bucket name (Note [deferred work]). A gradient that is not finite stops nothing, so
        that state stays complete and DDP can go on: `findings` has the error.
        """
        return do_all(self.stages(bucket, buffer, bad, step=step, num_backwards=num_backwards))

    def stages(
        self, bucket: BucketLayout, buffer: Tensor, bad: Place, *, step: int, num_backwards: int
    ) -> Generator[None, None, list[tuple[str, Deferred]]]:
        """Do what `run` does in stages, each of which may run beside others of other buckets (`CommThread`)."""
        if buffer.is_sparse:
            self._run_sparse(bucket, buffer, int(bad), step)
            return []
        self.findings.poison(buffer, bad)
        before = self._bad_before.pop(bucket.name, -1)
        if self._comms.all.size == 1 and not any(part.acts_alone for part in bucket.parts):
            pass  # nothing is late, and nothing waits
        elif any(part.timing_at(step).delay_steps for part in bucket.parts):
            bad, self._bad_before[bucket.name] = before, bad
        elif any((step + 1) % part.timing_at(step).period for part in bucket.parts if not part.node.exchanges_weights):
            bad = self._bad_before[bucket.name] = self.findings.either(bad, before)  # for a later step to exchange
        else:
            bad = self.findings.either(bad, before)
        parts = [self._run_part(bucket, part, buffer, bad, step, num_backwards) for part in bucket.parts]
        return [(bucket.name, rest) for rest in (yield from side_by_side(parts)) if rest is not None]

    def end_pass(self) -> None:
        """Restore the state of a step that a GradScaler skips; runs before deferred work."""
        self.findings.end_pass()
        used_here(*(flag for flag in self._spoils if isinstance(flag, Tensor)))
        spoiled = reduce(or_, self._spoils, False)
        if spoiled is not False:
            for part in (part for bucket in self._layouts.values() for part in bucket.parts):
                part.undo.restore(spoiled)
            if self._paid and spoiled:  # on an accelerator the host waits, in the first pass after a switch
                self.owed.update(self._paid)
        self._paid.clear()
        self._was_spoiled, self._spoils = spoiled, []

    def owes(self, name: str) -> bool:
        """Say whether a parameter's result may contain gradients of earlier steps, which must not be lost.

        False where results are no mean of gradients, or of one rank alone, and for what an earlier plan left.
        """
        node = self.store.nodes[name]
        if node.kind != "gradients" or node.has_owners:
            return False
        if isinstance(node.core, DecoupledMomentum) and node.core.signed:
            return False
        gathers = node.timing.period > 1 or node.timing.delay_steps > 0
        return gathers or node.error_feedback in ("worker", "both")

    def take_back(self, results: Mapping[str, Tensor]) -> None:
        """Keep results that do not reach the optimizer, parameter -> result, for a later exchange; after the pass."""
        if self._was_spoiled:
            return
        for name, result in results.items():
            slots = self.store.tensors[name]
            if "residual" in slots:
                slots["residual"].add_(result)
                used_here(result)
            else:
                self.owed[name] = self.owed[name] + result if name in self.owed else result

    def rescale(self, factor: float) -> None:
        """Scale all kept gradients by the change of the loss scale."""
        for tensor in (*self.store.of_gradients(), *self.owed.values()):
            tensor.mul_(factor)

    def drop_owed(self) -> None:
        """Forget the gradients that an earlier plan left."""
        self.owed.clear()

    def _judge(self, bucket: BucketLayout, part: BucketPart, place: Place) -> None:
        """Look at a result; an exact mean of prescaled gradients is NaN throughout or nowhere."""
        exact = isinstance(part.algorithm, AcceptsPrescaled) and part.node.payload_codec is None
        self.findings.judge(bucket, part.bucket.flat[:1] if exact else part.bucket.flat, place)

    def _run_sparse(self, bucket: BucketLayout, gradient: Tensor, bad: int, step: int) -> None:
        """Average a sparse gradient exactly, in place: over all ranks, or, with weights, in the host or rack."""
        node, comm = bucket.nodes[0], self._comms.all
        if node.averages_in_host and step >= node.timing.until_step:
            comm = self._comms.with_levels(node).inner
        with describe_failure(f"exchanging {bucket.name} ({bucket.names[0]} .. {bucket.names[-1]}) in step {step}"):
            founds = self._row_averages[bucket.names[0]](gradient, bad, comm)
        if self._undoes:
            self._spoils.append(not has_finite_rows(gradient))
        if self._nonfinite == "raise" and not (max(founds) < 0 and has_finite_rows(gradient)):
            self.findings.blame(bucket, bad)

    def _run_part(
        self, bucket: BucketLayout, part: BucketPart, buffer: Tensor, bad: Place, step: int, num_backwards: int
    ) -> Generator[None, None, Deferred | None]:
        """Exchange one part, in the stages that its algorithm has."""
        part.load(buffer)
        rest = None
        if self._undoes:
            part.undo.begin(step)
        if self.owed:
            self._pay(part, 1 / self._comms.all.size if bucket.prescaled else 1.0)
        if self._comms.all.size > 1 or part.acts_alone:
            seed = num_backwards << 32 | zlib.crc32(part.bucket.spans[0].name.encode())
            lr = max(float(group.get("lr", 0.0)) for group in self._optimizer.param_groups)
            ratio_setting = self.ratio_setting if part.node.ratio_target else None
            context = StepContext(step=step, seed=seed, lr=lr, loss_scale=self.loss_scale, ratio_setting=ratio_setting)
            spans = part.bucket.spans
            with describe_failure(
                f"exchanging {part.bucket.name} ({spans[0].name} .. {spans[-1].name}) in step {step}"
            ):
                rest = yield from self._carry_out(part, context, prescaled=bucket.prescaled)
            self._judge(bucket, part, bad)
        else:
            self.findings.keep(bucket, bad)
        if self._undoes or self._paid or (self.owed and self._nonfinite == "propagate"):
            self._spoils.append(nonfinite(part.bucket.flat))
        part.save(buffer)
        return rest

    def _carry_out(
        self, part: BucketPart, context: StepContext, *, prescaled: bool
    ) -> Generator[None, None, Deferred | None]:
        algorithm, given = part.algorithm, (part.bucket, part.state, part.comm, context)
        if isinstance(algorithm, WorksInStages):
            return (yield from algorithm.stages(*given, prescaled=prescaled))
        if prescaled and isinstance(algorithm, AcceptsPrescaled):
            return algorithm.on_prescaled(*given)
        return algorithm.on_ready(*given)

    def _pay(self, part: BucketPart, weight: float) -> None:
        for span in part.bucket.spans:
            if (debt := self.owed.pop(span.name, None)) is not None:
                part.bucket.view(span).add_(debt, alpha=weight)
                used_here(debt)
                if self._nonfinite == "propagate":
                    self._paid[span.name] = debt
