"""Estimates of the curvature for algorithms that need it, on the raw module, between a step and the next pass."""

import contextlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from pliant.accelerator import synchronize
from pliant.comm.base import Comm
from pliant.curvature import (
    Estimator,
    Fisher,
    GaussNewton,
    Hutchinson,
    LossName,
    LossObjective,
    RefreshInterval,
    block_means,
    find_logits,
    log_shift,
    output_in,
    spearman,
)
from pliant.engine.comm_thread import CommThread
from pliant.engine.curvature_mean import CurvatureMean
from pliant.engine.curvature_requests import Curvature, CurvatureRequest, CurvatureSample
from pliant.engine.hooks import do_nothing, watch_forward
from pliant.engine.outputs import OutputWatch
from pliant.engine.parts import Part
from pliant.engine.samples import batch_size, first_samples

__all__ = ["CurvatureMonitor"]

_log = logging.getLogger("pliant")

_LOSSES = get_args(LossName)
_UNKNOWN, _FAILED = len(_LOSSES) + 1, len(_LOSSES) + 2
"""Codes of a rank's estimate beside the index of its loss, from 1, and 0 for none."""
_NEVER = 1 << 62

_ESTIMATORS: Mapping[str, Estimator] = {
    "gauss_newton": GaussNewton(),
    "hutchinson": Hutchinson(),
    "fisher": Fisher(),
}


class CurvatureMonitor(Part):
    """Estimates the curvature when it is due, and writes it where algorithms read it.

    It runs after a step, when DDP is idle, and bypasses DDP's hooks: derivatives are taken of the inner module's
    parameters, and `.grad` stays. Sums over ranks run in the communication thread, in its order, so that a late
    exchange reads the same values on every rank.

    The loss must be known: by its name, or recognized by its gradient, alike on all ranks. Where it is not, or an
    estimate fails, all ranks stop, algorithms read zeros, as before the first estimate, and one rank says so in a
    warning of the logger. It raises nothing but the error of a lost rank.

    Bytes: one all-reduce of 4 for each block, and of 12 for each rank.

    Args:
        ddp: The DDP around it, if there is one.
        module: The model without wrappers.
        request: Request of the plan's algorithms.
        comm: Comm of the run.
        comm_thread: Communication thread of the gradients.
        record: Samples of the run.
        step: Steps completed.

    """

    key = "curvature"
    keeps_from_joining = "this plan lets ranks measure together after steps"

    def __init__(
        self,
        ddp: nn.Module | None,
        module: nn.Module,
        request: CurvatureRequest,
        comm: Comm,
        comm_thread: CommThread,
        record: Curvature,
        step: int,
    ) -> None:
        self._module, self._request, self._comm = module, request, comm
        self._comm_thread, self._record = comm_thread, record
        self._device = next(module.parameters()).device
        spec = request.spec
        self._refresh = RefreshInterval(
            interval=spec.interval, max_interval=spec.max_interval, time_share=spec.time_share
        )
        self._mean = CurvatureMean(request, self._device)
        self._least_steps = math.ceil(self._mean.numel / (spec.bytes_share * request.sent_numel))
        """Least steps between two estimates, so that they stay within their share of the bytes."""
        self._step, self._due = step, _NEVER if record.unsampled else step + 1
        self._kept: tuple[LossObjective, bool, torch.dtype] | None = None
        self._looking = False
        self._since_s: float | None = None
        self._steps_s, self._num_steps, self._rest_s = 0.0, 0, 0.0
        self._unwatch = watch_forward(ddp, module, self._keep, do_nothing)
        self._outputs = OutputWatch(ddp, module, lambda: not self._looking and self._step + 1 >= self._due)

    @property
    def state(self) -> dict[str, Tensor]:
        """State from which a resumed run goes on; tensors of fixed shapes."""
        counters = torch.tensor([self._mean.looks, self._refresh.interval, self._due], dtype=torch.int64)
        return {"mean": self._mean.sums, "counters": counters}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        looks, interval, self._due = saved["counters"].tolist()
        spec = self._request.spec
        self._refresh = RefreshInterval(interval=interval, max_interval=spec.max_interval, time_share=spec.time_share)
        self._step, self._kept = self._due - 1, None  # so that inputs are kept until after_step knows better
        self._mean.load(saved["mean"], looks)

    def knows(self, request: CurvatureRequest) -> bool:
        """Say whether its estimates answer another plan's request too."""
        return request.spec == self._request.spec and request.numels == self._request.numels

    def close(self) -> None:
        """Stop estimating, and remove hooks."""
        self._unwatch()
        self._outputs.close()

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        if min(saved["counters"].tolist()) < 0:
            raise ValueError("the state is damaged: looks at the curvature are counted below 0.")

    def after_step(self, step: int) -> None:
        """Estimate the curvature, if it is due. Collective then."""
        self._step = step
        if self._due == _NEVER and not self._record.unsampled:  # the caller has told how to read the output since
            self._due = step + 1
        due = step >= self._due
        if due:
            synchronize(self._device)  # what steps have left to do is their time
        now_s = time.perf_counter()
        if self._since_s is not None:
            self._steps_s, self._num_steps = self._steps_s + now_s - self._since_s, self._num_steps + 1
        if due:
            self._look(step, now_s)
        self._since_s = time.perf_counter()

    # - One look

    def _keep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._looking or self._step + 1 < self._due or not (self._module.training and torch.is_grad_enabled()):
            return
        num = batch_size((args, kwargs))
        few = max(round(num * self._request.spec.batch_share), min(num, 2))  # of one, BatchNorm knows no deviation
        task = LossObjective(
            model=self._module,
            args=first_samples(args, num, few),
            kwargs=first_samples(kwargs, num, few),
            logits=self._record.logits if self._record.logits is not find_logits else _output_of,
            loss=self._record.loss,
        )
        kind = self._device.type
        self._kept = task, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def _look(self, step: int, start_s: float) -> None:
        # Differences of gradients move the weights for a moment, which a late exchange may be reading.
        self._comm_thread.drain()
        size, rank = self._comm.size, self._comm.rank
        found, code, why = None, 0, ""
        try:
            name, why = self._loss()
            code = _UNKNOWN if why else 0 if name is None else 1 + _LOSSES.index(name)
            found = self._estimate(step, name) if name is not None else None
        except Exception as error:  # noqa: BLE001  the others must not wait for this rank, nor the training end
            code, why = _FAILED, f"a look has failed: {type(error).__name__}: {error}"
        sound = found is not None and bool(found.isfinite().all())
        nothing = torch.zeros(self._mean.numel, dtype=torch.float32, device=self._device)
        told = nothing.new_zeros(1 + 3 * size)  # looks; code, cost and time of a step by rank
        told[0], told[1 + rank] = float(sound), float(code)
        told[1 + size + rank] = time.perf_counter() - start_s + self._rest_s
        told[1 + 2 * size + rank] = self._steps_s / self._num_steps if self._num_steps else 0.0
        own = found if found is not None and sound else nothing
        shared, shared_from_s = torch.cat([own, told]), time.perf_counter()
        self._comm_thread.submit(lambda: self._share(shared, step, why), name="curvature", step=step - 1).wait()
        self._kept = None
        self._outputs.forget()
        self._rest_s = time.perf_counter() - shared_from_s
        self._steps_s, self._num_steps = 0.0, 0
        self._record.seconds += time.perf_counter() - start_s

    def _loss(self) -> tuple[LossName | None, str]:
        """Return the loss from which labels are drawn, or why it is not known; neither if no pass was seen."""
        record = self._record
        if self._kept is None:
            return None, ""
        if record.loss_name is not None:
            return record.loss_name, ""
        takes_loss = record.loss is not None and self._request.spec.estimator != "gauss_newton"
        if takes_loss or record.logits is not find_logits:
            return "cross_entropy", ""
        return self._outputs.loss()

    def _estimate(self, step: int, loss_name: LossName) -> Tensor | None:
        """Return this rank's means over blocks, (all blocks,); None if it has seen no forward pass."""
        if self._kept is None:
            return None
        (task, autocast, dtype), spec = self._kept, self._request.spec
        task = replace(task, loss_name=loss_name)
        generator = torch.Generator(self._device).manual_seed(step * self._comm.size + self._comm.rank)
        self._looking = True
        try:
            with torch.autocast(self._device.type, dtype=dtype) if autocast else contextlib.nullcontext():
                diagonal = _ESTIMATORS[spec.estimator].diagonal(task, generator)
        finally:
            self._looking = False
        return torch.cat([block_means(diagonal[name], numels) for name, numels in self._request.numels.items()])

    def _share(self, shared: Tensor, step: int, why: str) -> None:
        """Sum over ranks, average over estimates, and write. Runs in the communication thread."""
        self._comm.all_reduce(shared).wait()
        num, size = self._mean.numel, self._comm.size
        looks, *told = shared[num:].tolist()
        codes, told = told[:size], told[size:]
        bad = [rank for rank, code in enumerate(codes) if code >= _UNKNOWN]
        if bad or len({code for code in codes if code}) > 1:
            self._give_up(why or "ranks train on different losses", step, bad[0] if bad else 0)
            return
        cost_s, step_s = max(told[:size]), max(told[size:])
        ranks = shift = 0.0
        if looks:
            before, now = self._mean.add(shared[:num] / looks)
            if before is not None:
                ranks, shift = spearman(now, before), log_shift(now, before)
                self._refresh = self._refresh.after(ranks, shift)
        steps = max(self._least_steps, self._refresh.steps(cost_s, step_s))
        self._due = step + steps
        look = CurvatureSample(
            step=step, means=self._mean.by_parameter(), ranks=ranks, shift=shift, cost_s=cost_s, next_steps=steps
        )
        self._record.history.append(look)

    def _give_up(self, why: str, step: int, speaker: int) -> None:
        """Stop estimating, on all ranks; one logs why."""
        self._record.unsampled = (
            f"on rank {speaker} {why}" if self._comm.rank == speaker else f"rank {speaker} says why"
        )
        self._mean.forget()
        self._due = _NEVER
        if self._comm.rank == speaker:
            _log.warning(
                "after step %d the curvature is no longer felt, and what is sent is chosen by size alone, since %s; "
                "say how to read the model's output with run.curvature.reads(loss=..., logits=...), where the loss is "
                "one of %s, or choose power=0.",
                *(step, self._record.unsampled, ", ".join(_LOSSES)),
            )


def _output_of(output: Any) -> Tensor:
    """Return the output by which the loss was recognized."""
    found = output_in(output)
    if found is None:
        raise ValueError(f"the model returns a {type(output).__name__}, in which nothing to take a loss of was found.")
    return found
