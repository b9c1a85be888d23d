"""Shard of a server: weights that one owner serves, stepped by a copy of the user's optimizer."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import finish_copies
from pliant.buckets import as_real
from pliant.codecs import Codec
from pliant.engine.optimizer_copy import OptimizerCopy
from pliant.engine.owned_ranges import OwnedRanges, pack

__all__ = ["ServerShard"]


class ServerShard:
    """Weights to which gradients are applied as they arrive, apart from those that this rank computes with.

    Args:
        owned: What this rank owns of each parameter, in an order that all ranks know.
        optimizer: The user's, of which a copy steps.
        codec: Codec in which gradients come; None for float32.

    """

    def __init__(self, owned: Sequence[OwnedRanges], optimizer: Optimizer, codec: Codec | None = None) -> None:
        self._owned, self._codec = list(owned), codec
        self._weights = [own.empty() for own in owned]
        self.numel = sum(own.numel for own in owned)
        self._device = owned[0].parameter.device if owned else torch.device("cpu")
        self._sum = torch.zeros(self.numel)  # in host memory, into which gradients come
        reals = [as_real(weight) for weight in self._weights]
        self._gradients = [
            g.view(x.shape) for g, x in zip(self._sum.split([x.numel() for x in reals]), reals, strict=True)
        ]
        self._copy = OptimizerCopy(optimizer, owned, self._weights)
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """Begin, or continue, from the model's weights and the optimizer's state."""
        for weight, own in zip(self._weights, self._owned, strict=True):
            real = as_real(weight)
            pack(real.view(-1), own.views(own.parameter))
        self._copy.take_states()
        self.follow_schedule()

    def follow_schedule(self) -> None:
        """Copy learning rates and other settings from the user's optimizer."""
        self._copy.follow_schedule()

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
        if self._weights:
            self._sum.mul_(1 / count)
            for weight, gradient in zip(self._weights, self._gradients, strict=True):
                own = gradient.to(self._device, weight.dtype.to_real())
                weight.grad = torch.view_as_complex(own) if weight.is_complex() else own
            self._copy.step()
            self._sum.zero_()

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Copy the weights to out, float32 (numel,), in host memory."""
        reals = [as_real(weight) for weight in self._weights]
        for part, weight in zip(out.split([w.numel() for w in reals]), reals, strict=True):
            part.view(weight.shape).copy_(weight, non_blocking=True)
        finish_copies(self._device)
