"""Feel the curvature for algorithms that ask for it: on the raw module, between a step and the next forward pass."""

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pliant.comm.base import Comm
from pliant.curvature import (
    Estimator,
    Fisher,
    GaussNewton,
    Hutchinson,
    Refresh,
    Task,
    block_means,
    log_shift,
    settled,
    spearman,
)
from pliant.engine.felt import Curvature, Felt, Look
from pliant.engine.lane import Lane

__all__ = ["Feeler"]

_ESTIMATORS: Mapping[str, Estimator] = {
    "gauss_newton": GaussNewton(),
    "hutchinson": Hutchinson(),
    "fisher": Fisher(),
}


class Feeler:
    """Looks at the curvature when it is time to, and writes it where algorithms read it.

    After a step, so that nothing of DDP is at work, and no hook of it is met: derivatives are taken of the inner
    module's parameters, and `.grad` stays. The sums over ranks leave by the lane, in its order, so that an exchange
    that is late reads the same values on every rank.

    Bytes: one all-reduce of 4 for each block, and of 8 for each rank.

    Args:
        module: The model without its DDP.
        felt: What is asked for.
        comm: Of the run.
        record: Of what was felt.
        step: Steps completed.

    """

    def __init__(self, module: nn.Module, felt: Felt, comm: Comm, record: Curvature, step: int) -> None:
        self._module, self._felt, self._comm, self._record = module, felt, comm, record
        self._device = next(module.parameters()).device
        spec = felt.spec
        self._refresh = Refresh(interval=spec.interval, max_interval=spec.max_interval, time_share=spec.time_share)
        self._mean = torch.zeros(sum(map(len, felt.numels.values())), device=self._device)  # (all blocks,)
        self._least_steps = math.ceil(self._mean.numel() / (spec.bytes_share * felt.sent_numel))
        """Between two looks, so that they stay within their share of the bytes."""
        self._step, self._due, self._looks = step, step + 1, 0
        self._kept: tuple[Task, bool, torch.dtype] | None = None
        self._looking = False
        self._since_s: float | None = None
        self._steps_s, self._num_steps, self._rest_s = 0.0, 0, 0.0
        # A plain function, since copies of the module, as for averaged weights, copy what hooks are bound to.
        self._hook = module.register_forward_pre_hook(lambda *call: self._keep(*call), with_kwargs=True)

    @property
    def state(self) -> dict[str, Tensor]:
        """What a resumed run goes on from; tensors of fixed shapes."""
        counters = torch.tensor([self._looks, self._refresh.interval, self._due], dtype=torch.int64)
        return {"mean": self._mean, "counters": counters}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        self._mean.copy_(saved["mean"])
        self._looks, interval, self._due = saved["counters"].tolist()
        spec = self._felt.spec
        self._refresh = Refresh(interval=interval, max_interval=spec.max_interval, time_share=spec.time_share)
        self._step, self._kept = self._due - 1, None  # so that inputs are kept until after_step knows better
        if self._looks:
            self._write(self._settled(self._averaged()))

    def knows(self, felt: Felt) -> bool:
        """Say whether what was felt so far is of use for what another plan asks for."""
        return felt.spec == self._felt.spec and felt.numels == self._felt.numels

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def after_step(self, step: int, lane: Lane) -> None:
        """Look, if it is time. Collective then."""
        self._step = step
        due = step >= self._due
        if due and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # what steps have left to do is their time
        now_s = time.perf_counter()
        if self._since_s is not None:
            self._steps_s, self._num_steps = self._steps_s + now_s - self._since_s, self._num_steps + 1
        if due:
            self._look(step, lane, now_s)
        self._since_s = time.perf_counter()

    # - One look

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (
            module is not self._module
            or self._looking
            or self._step + 1 < self._due
            or not (module.training and torch.is_grad_enabled())
        ):
            return
        num = _batch_size((args, kwargs))
        few = max(round(num * self._felt.spec.batch_share), min(num, 2))  # of one, BatchNorm knows no deviation
        task = Task(
            model=module,
            args=_first(args, num, few),
            kwargs=_first(kwargs, num, few),
            logits=self._record.logits,
            loss=self._record.loss,
        )
        kind = self._device.type
        self._kept = task, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def _look(self, step: int, lane: Lane, start_s: float) -> None:
        lane.drain()  # differences of gradients move the weights for a moment, which a late exchange may be reading
        size, num = self._comm.size, self._mean.numel()
        own, error = torch.zeros(num, device=self._device), None
        try:
            found = self._estimate(step)
        except Exception as raised:  # noqa: BLE001  the others must not wait for this rank
            found, error = None, raised
        sound = found is not None and bool(found.isfinite().all())
        cost_s = time.perf_counter() - start_s + self._rest_s
        told = torch.zeros(2 + 2 * size, device=self._device)  # looks, errors, cost and time of a step by rank
        told[0], told[1] = float(sound), float(error is not None)
        told[2 + self._comm.rank] = cost_s
        told[2 + size + self._comm.rank] = self._steps_s / self._num_steps if self._num_steps else 0.0
        shared = torch.cat([found if found is not None and sound else own, told])
        shared_from_s = time.perf_counter()
        try:
            lane.submit(lambda: self._share(shared, step), name="curvature", step=step - 1).wait()
        except RuntimeError:
            if error is not None:
                raise error from None
            raise
        self._kept = None
        self._rest_s = time.perf_counter() - shared_from_s
        self._steps_s, self._num_steps = 0.0, 0
        self._record.seconds += time.perf_counter() - start_s

    def _estimate(self, step: int) -> Tensor | None:
        """Return this rank's means over blocks, (all blocks,); None if it has seen no forward pass."""
        if self._kept is None:
            return None
        (task, autocast, dtype), spec = self._kept, self._felt.spec
        generator = torch.Generator(self._device).manual_seed(step * self._comm.size + self._comm.rank)
        self._looking = True
        try:
            with torch.autocast(self._device.type, dtype=dtype) if autocast else contextlib.nullcontext():
                diagonal = _ESTIMATORS[spec.estimator].diagonal(task, generator)
        finally:
            self._looking = False
        return torch.cat([block_means(diagonal[name], numels) for name, numels in self._felt.numels.items()])

    def _share(self, shared: Tensor, step: int) -> None:
        """Sum over ranks, average over looks, and write. Runs in the lane."""
        self._comm.all_reduce(shared).wait()
        num, size = self._mean.numel(), self._comm.size
        looks, errors, *told = shared[num:].tolist()
        if errors:
            raise RuntimeError(
                f"the curvature could not be felt on {errors:.0f} of {size} ranks after step {step}; their own errors "
                "say why."
            )
        cost_s, step_s = max(told[:size]), max(told[size:])
        ranks = shift = 0.0
        if looks:
            before = self._settled(self._averaged()) if self._looks else None
            self._mean.lerp_(shared[:num] / looks, 1 - self._felt.spec.beta)
            self._looks += 1
            now = self._settled(self._averaged())
            self._write(now)
            if before is not None:
                ranks, shift = spearman(now, before), log_shift(now, before)
                self._refresh = self._refresh.after(ranks, shift)
        steps = max(self._least_steps, self._refresh.steps(cost_s, step_s))
        self._due = step + steps
        look = Look(step=step, means=self._means(), ranks=ranks, shift=shift, cost_s=cost_s, next_steps=steps)
        self._record.history.append(look)

    def _averaged(self) -> Tensor:
        """Return the mean over looks, (all blocks,), corrected for having begun at zero."""
        return self._mean / max(1 - self._felt.spec.beta**self._looks, 1e-30)

    def _parts(self, x: Tensor) -> dict[str, Tensor]:
        numels = self._felt.numels
        return dict(zip(numels, x.split([len(blocks) for blocks in numels.values()]), strict=True))

    def _settled(self, means: Tensor) -> Tensor:
        spec, numels = self._felt.spec, self._felt.numels
        parts = self._parts(means).items()
        return torch.cat([settled(x, numels[name], shrink=spec.shrink, clip=spec.clip) for name, x in parts])

    def _write(self, values: Tensor) -> None:
        for name, x in self._parts(values).items():
            for slot in self._felt.slots[name]:
                slot.copy_(x)

    def _means(self) -> dict[str, float]:
        numels = self._felt.numels
        wholes = [
            settled(x, numels[name], shrink=1.0, clip=1.0)[0] for name, x in self._parts(self._averaged()).items()
        ]
        return dict(zip(numels, cast(list[float], torch.stack(wholes).tolist()), strict=True))


def _batch_size(inputs: Any) -> int:
    """Return the length of the first tensor that is found, 0 if there is none: its samples."""
    if isinstance(inputs, Tensor):
        return inputs.shape[0] if inputs.dim() else 0
    if isinstance(inputs, Mapping):
        inputs = tuple(cast(Mapping[Any, Any], inputs).values())
    if isinstance(inputs, (tuple, list)):
        return next((num for each in cast(tuple[Any, ...], inputs) if (num := _batch_size(each))), 0)
    return 0


def _first(inputs: Any, num: int, few: int) -> Any:
    """Return nested inputs with the first few of `num` samples, without their graph; tensors are views."""
    if isinstance(inputs, Tensor):
        return (inputs[:few] if inputs.dim() and inputs.shape[0] == num else inputs).detach()
    if type(inputs) is dict:
        return {key: _first(value, num, few) for key, value in cast(dict[Any, Any], inputs).items()}
    if type(inputs) in (tuple, list):
        kept = [_first(value, num, few) for value in inputs]
        return tuple(kept) if type(inputs) is tuple else kept
    return inputs
