"""Shard of a server: weights that one owner serves, to which gradients are applied as they arrive."""

from collections.abc import Sequence, Set

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import finish_copies
from pliant.buckets import as_real
from pliant.codecs import Codec
from pliant.engine.owned_ranges import OwnedRanges
from pliant.engine.owned_shard import OwnedShard

__all__ = ["ServerShard"]


class ServerShard:
    """Weights to which gradients are applied as they arrive.

    Args:
        owned: What this rank owns of each parameter, in an order that all ranks know.
        optimizer: The user's, of which a copy steps.
        codec: Codec in which gradients come; None for float32.

    """

    def __init__(self, owned: Sequence[OwnedRanges], optimizer: Optimizer, codec: Codec | None = None) -> None:
        self._codec = codec
        self.numel = sum(own.numel for own in owned)
        self._device = owned[0].parameter.device if owned else torch.device("cpu")
        self._sum = torch.zeros(self.numel, dtype=torch.float32)  # in host memory, into which gradients come
        self._shard = OwnedShard(owned, optimizer, self._sum)

    def begin(self) -> None:
        """Begin, or continue, from the model's weights and the optimizer's state."""
        self._shard.begin()

    def follow_schedule(self) -> None:
        """Copy learning rates and other settings from the user's optimizer."""
        self._shard.follow_schedule()

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

    def step(self, count: int, used: Set[str]) -> None:
        """Step with the mean of the `count` gradients that were gathered, but for parameters that no rank has used.

        Those are all zero, and not in `used`, which are the parameters that this rank has used itself.
        """
        if self.numel:
            self._shard.step(1 / count, self._shard.weights.keys() - used)
            self._sum.zero_()

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Copy the weights to out, float32 (numel,), in host memory."""
        reals = [as_real(weight) for weight in self._shard.weights.values()]
        for part, weight in zip(out.split([w.numel() for w in reals]), reals, strict=True):
            part.view(weight.shape).copy_(weight, non_blocking=True)
        finish_copies(self._device)
