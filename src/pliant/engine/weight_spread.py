"""Way of new weights from their owners to all ranks."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pliant.collectives.owner import OwnerWays, SpreadFromOwners
from pliant.comm.base import Comm, CommError
from pliant.engine.owned_ranges import OwnedRanges, pack, unpack

__all__ = ["WeightSpread"]


class WeightSpread:
    """Sends the weights that owners have stepped to all ranks, by way of one vector of one dtype.

    Args:
        held: What each rank owns of each parameter, by rank, in an order that all ranks know.
        comm: Ranks.
        dtype: Dtype of the weights, real.
        device: Device of the weights.
        ways: Ways of parts between hosts; straight from owners if None.

    """

    def __init__(
        self,
        held: Sequence[Sequence[OwnedRanges]],
        comm: Comm,
        *,
        dtype: torch.dtype,
        device: torch.device,
        ways: OwnerWays | None,
    ) -> None:
        self._held, self._rank = held, comm.rank
        numels = [sum(own.numel for own in theirs) for theirs in held]
        self._spread = SpreadFromOwners(numels, comm, dtype=dtype, device=device, ways=ways)

    @torch.no_grad()
    def pack(self, weights: Mapping[str, Tensor]) -> None:
        """Take what this rank sends: weights of what it owns of a parameter, or the model's where there are none."""
        held = self._held[self._rank]
        given = [[weights[own.name].view(-1)] if own.name in weights else own.views(own.parameter) for own in held]
        pack(self._spread.part(self._rank), [view for views in given for view in views])

    def send(self, step: int) -> None:
        """Send what is packed, and receive all other parts, after a step. Collective; in the communication thread."""
        try:
            self._spread()
        except CommError as error:
            text = f"while sending new weights to all after step {step}: {error}"
            raise CommError(text, rank=error.rank, op=error.op, lost=error.lost) from error

    def unpack(self, *, own: bool) -> None:
        """Write the weights that have come to the model's, and this rank's own parts if wanted."""
        for rank, theirs in enumerate(self._held):
            if own or rank != self._rank:
                unpack(self._spread.part(rank), [view for each in theirs for view in each.views(each.parameter)])

    def read(self, into: Mapping[str, Tensor]) -> None:
        """Copy the weights that have come to tensors of their parameters' shapes, by name."""
        for rank, theirs in enumerate(self._held):
            unpack(self._spread.part(rank), [view for own in theirs for view in own.views(into[own.name])])

    @torch.no_grad()
    def fill(self, weights: Mapping[str, Tensor]) -> None:
        """Take whole parameters, by name, in the place of weights that have come."""
        for rank, theirs in enumerate(self._held):
            pack(self._spread.part(rank), [view for own in theirs for view in own.views(weights[own.name])])
