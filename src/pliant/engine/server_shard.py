"""Shard of a server: weights that one owner serves, stepped by a copy of the user's optimizer."""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import finish_copies
from pliant.buckets import as_real
from pliant.codecs import Codec
from pliant.engine.optimizer_state import clone_optimizer

__all__ = ["ServerShard"]


class ServerShard:
    """Weights to which gradients are applied as they arrive, apart from those that this rank computes with.

    The copy of the optimizer shares the state of each parameter with the user's optimizer, where it is saved and
    loaded; `follow_schedule` copies learning rates and other settings.

    Args:
        parameters: This rank's own, in an order that all ranks know.
        optimizer: The user's.
        codec: Codec in which gradients come; None for float32.

    """

    def __init__(self, parameters: Sequence[Tensor], optimizer: Optimizer, codec: Codec | None = None) -> None:
        self._parameters, self._codec = list(parameters), codec
        self._user = weakref.ref(optimizer)  # its hooks hold the run, and threads hold this
        self._weights = [p.detach().clone().requires_grad_() for p in parameters]
        self.numel = sum(as_real(p).numel() for p in parameters)
        self._device = parameters[0].device if parameters else torch.device("cpu")
        self._sum = torch.zeros(self.numel)  # in host memory, into which gradients come
        reals = [as_real(p) for p in parameters]
        numels = [p.numel() for p in reals]
        self._gradients = [g.view(p.shape) for g, p in zip(self._sum.split(numels), reals, strict=True)]
        self._stepper = clone_optimizer(optimizer)
        self._groups = [  # (group of the user's optimizer, our weights in it)
            (k, held)
            for k, group in enumerate(optimizer.param_groups)
            if (held := [w for w, p in zip(self._weights, parameters, strict=True) if _is_in(p, group["params"])])
        ]
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """Begin, or continue, from the model's weights and the optimizer's state."""
        self._stepper.state = type(self._optimizer.state)(dict)
        for weight, parameter in zip(self._weights, self._parameters, strict=True):
            weight.copy_(parameter)
            if parameter in self._optimizer.state:
                self._stepper.state[weight] = self._optimizer.state[parameter]
        self.follow_schedule()

    @property
    def _optimizer(self) -> Optimizer:
        if (optimizer := self._user()) is None:
            raise RuntimeError("the optimizer of this run is gone; keep it as long as you train.")
        return optimizer

    def follow_schedule(self) -> None:
        """Copy learning rates and other settings from the user's optimizer."""
        groups = self._optimizer.param_groups
        self._stepper.param_groups = [{**groups[k], "params": held} for k, held in self._groups]

    @property
    def num_bytes(self) -> int:
        """Bytes of a gradient as it comes."""
        return 4 * self.numel if self._codec is None else self._codec.nbytes(self.numel)

    def add(self, gradient: Tensor) -> None:
        """Gather a gradient, uint8 (num_bytes,): its float32, or its payload."""
        if self._codec is None:
            self._sum.add_(gradient.view(torch.float32))
        else:
            self._codec.decode_add(gradient, self._sum)

    @torch.no_grad()
    def step(self, count: int) -> None:
        """Step with the mean of the `count` gradients that were gathered."""
        if self._groups:
            self._sum.mul_(1 / count)
            for weight, gradient in zip(self._weights, self._gradients, strict=True):
                own = gradient.to(self._device, weight.dtype.to_real())
                weight.grad = torch.view_as_complex(own) if weight.is_complex() else own
            self._stepper.step()
            self._sum.zero_()
            for weight, parameter in zip(self._weights, self._parameters, strict=True):
                if weight in self._stepper.state:  # an entry of its own, once there is something in it
                    self._optimizer.state[parameter] = self._stepper.state[weight]

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Copy the weights to out, float32 (numel,), in host memory."""
        reals = [as_real(weight) for weight in self._weights]
        for part, weight in zip(out.split([w.numel() for w in reals]), reals, strict=True):
            part.view(weight.shape).copy_(weight, non_blocking=True)
        finish_copies(self._device)


def _is_in(parameter: Tensor, group: Sequence[Tensor]) -> bool:
    return any(parameter is other for other in group)
