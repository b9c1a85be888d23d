"""A model that does not compute: its gradients come when a workload says so, with values as gradients have them."""

import time
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from pliant.spec import Workload

__all__ = ["Replay"]

_SHIFTS = 1 << 16
"""Places in the pool at which a gradient may begin."""
_SCALE = 1e-2
"""Typical size of a gradient's element."""
_STEP_SHIFT, _TENSOR_SHIFT = 40_503, 12_289
"""Odd, so that the places of steps and tensors go round all shifts."""


class Replay(nn.Module):
    """A workload as a module, for DistributedDataParallel and its hooks: same shapes, same layer classes, same times.

    Forward sleeps for the workload's forward time; backward gives one parameter after the other its gradient, each at
    its time after the start of backward, or at once where that has passed. It sleeps and does not spin, so that ranks
    which share cores replay faster machines than they have.

    Gradients are not zeros, since codecs and sparsifiers must have their usual work. One pool of numbers per rank is
    drawn with a seed: z * exp(u), with z and u standard normal, which has a few large elements and many small ones as
    gradients do (the largest 1 % hold 40 % of the energy). Half of its variance is drawn alike on all ranks, the
    rest by each rank alone. In each step each tensor takes a stretch of the pool that begins elsewhere.

    Args:
        workload: Tensors in the order in which their gradients are ready, named 'owner.parameter'.
        seed: Of the pool and the weights, the same on all ranks.
        rank: Whose own part of the pool it is.

    Raises:
        ValueError: Tensors are not in the order of their times, not float32, or their names do not fit together.

    """

    def __init__(self, workload: Workload, *, seed: int = 0, rank: int = 0) -> None:
        super().__init__()
        _check(workload)
        self.slowdown = 1.0
        """Factor of all times; 0 for steps that only warm up."""
        self._workload = workload
        generator = torch.Generator().manual_seed(seed)
        weights = [0.02 * torch.randn(t.shape, generator=generator) for t in workload.tensors]
        self._tensors = [_grow(self, t.name, t.layer, w) for t, w in zip(workload.tensors, weights, strict=True)]
        num = max(t.numel for t in workload.tensors) + _SHIFTS
        self._pool = _random_values(num, generator) + _random_values(
            num, torch.Generator().manual_seed(seed + 1 + rank)
        )  # (num,)
        self._pool *= _SCALE / 2**0.5
        self._step = 0
        self._backward_began_s = 0.0

    def forward(self) -> Tensor:
        """Return what to call backward() on, a scalar."""
        time.sleep(self.slowdown * self._workload.forward_s)
        self._step += 1
        self._backward_began_s = 0.0
        x = torch.zeros((), requires_grad=True)
        for index in reversed(range(len(self._tensors))):  # the chain makes backward go through them in their order
            x = cast(Tensor, _Ready.apply(x, self._tensors[index], self, index))
        return x

    def gradient(self, index: int) -> Tensor:
        """Return the gradient of the tensor at this place of the workload, when its time has come."""
        now_s = time.perf_counter()
        if not self._backward_began_s:
            self._backward_began_s = now_s
        spec = self._workload.tensors[index]
        at = (self._step * _STEP_SHIFT + index * _TENSOR_SHIFT) % _SHIFTS
        gradient = self._pool[at : at + spec.numel].view(spec.shape).clone()
        left_s = self._backward_began_s + self.slowdown * spec.ready_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        return gradient


class _Ready(Function):
    """Passes its first input on; backward waits, and hands the parameter its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, replay: Replay, index: int) -> Tensor:
        del weight
        ctx.replay, ctx.index = replay, index
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return outer[0], ctx.replay.gradient(ctx.index), None, None


def _check(workload: Workload) -> None:
    layers: dict[str, str] = {}
    before_s = 0.0
    for tensor in workload.tensors:
        owner, _, _ = tensor.name.rpartition(".")
        if not owner:
            raise ValueError(f"the tensor {tensor.name!r} has no owner; name it as in 'layer.{tensor.name}'.")
        if layers.setdefault(owner, tensor.layer) != tensor.layer:
            raise ValueError(
                f"{owner!r} is a {layers[owner]} by one of its tensors and a {tensor.layer} by {tensor.name!r}; give "
                "both the same layer, or other names."
            )
        if tensor.dtype != "float32":
            raise ValueError(f"{tensor.name!r} is of type {tensor.dtype}, but only float32 is replayed.")
        if tensor.ready_s < before_s:
            raise ValueError(f"{tensor.name!r} is ready before the tensor in front of it; sort them by their times.")
        before_s = tensor.ready_s
    if len({tensor.name for tensor in workload.tensors}) < len(workload.tensors):
        raise ValueError(f"two tensors of {workload.name} have the same name.")


def _grow(root: nn.Module, name: str, layer: str, value: Tensor) -> nn.Parameter:
    """Put a parameter in its place in the tree of modules, with an owner whose class has the layer's name."""
    *path, last = name.split(".")
    at = root
    for depth, part in enumerate(path):
        child = dict(at.named_children()).get(part)
        if child is None:
            child = nn.Module()
            at.add_module(part, child)
        at = child
        if depth == len(path) - 1 and type(at) is nn.Module:
            at.__class__ = type(layer, (nn.Module,), {})
    parameter = nn.Parameter(value)
    at.register_parameter(last, parameter)
    return parameter


def _random_values(num: int, generator: torch.Generator) -> Tensor:
    """Return z exp(u) of standard normal z and u, (num,)."""
    return torch.randn(num, generator=generator) * torch.randn(num, generator=generator).exp_()
