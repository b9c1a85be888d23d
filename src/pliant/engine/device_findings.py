"""NaN and Inf in gradients on an accelerator: flags stay there, and the host reads those of a pass at once."""

from typing import Any

import torch
from torch import Tensor

from pliant.accelerator import current_stream, pinned, used_here
from pliant.codecs import finite_flag, nonfinite_place
from pliant.comm.base import Comm
from pliant.engine.bucket_layout import BucketLayout
from pliant.engine.nonfinite import Findings, NonFiniteGradientError, Place

__all__ = ["DeviceFindings"]

_Row = tuple[BucketLayout, bool]
"""A bucket that was looked at, and whether its gradients stay on this rank."""


class DeviceFindings(Findings):
    """Findings in gradients on an accelerator: flags that stay there, until the host reads those of a pass.

    Note [nobody waits for flags]: a question whose answer the host needs in the middle of a step would hold up
    everything that it launches. So what depends on a flag is chosen on the device; places and flags of a backward pass
    are copied to host memory after its last bucket, by the stream of the communication thread. The host looks at the
    copy before the optimizer changes a weight, where it waits for no more than the exchange of gradients. If a step is
    skipped, as a GradScaler does it, that is before the next pass.

    Args:
        comm: Comm of all ranks, which carries tensors of the host.
        raises: Whether a NaN or Inf is an error; else only scales are applied.
        device: Device of the gradients.

    """

    def __init__(self, comm: Comm, device: torch.device, *, raises: bool) -> None:
        super().__init__(comm, raises=raises)
        self._device = device
        self._seen: list[tuple[_Row, Tensor, Tensor]] = []
        """Buckets of this pass: place in this rank's gradients, and whether what must be finite is."""
        self._told: list[tuple[list[_Row], Tensor, Any]] = []
        """Passes since the last step: their buckets, a copy of places and flags, int64 (2, num_buckets), its event."""

    def look(self, x: Tensor, factor: float | None) -> Place:
        if factor is not None:
            x.mul_(factor)
        return nonfinite_place(x) if self._raises else -1

    def poison(self, x: Tensor, place: Place) -> None:
        if isinstance(place, Tensor):
            x.masked_fill_(place >= 0, torch.nan)

    def either(self, first: Place, second: Place) -> Place:
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            return torch.maximum(first, second)
        return first if isinstance(first, Tensor) else second

    def keep(self, bucket: BucketLayout, place: Place) -> None:
        if isinstance(place, Tensor):
            self._seen.append(((bucket, True), place, place < 0))

    def judge(self, bucket: BucketLayout, result: Tensor, place: Place) -> None:
        if self._raises:
            own = place if isinstance(place, Tensor) else torch.full((), place, device=self._device)
            self._seen.append(((bucket, False), own, finite_flag(result)))

    def end_pass(self) -> None:
        if not self._seen:
            return
        # Exchanges of more stages end in another thread than others; all ranks must blame in one order.
        self._seen.sort(key=lambda seen: seen[0][0].index)
        used_here(*(x for _, *of_bucket in self._seen for x in of_bucket))
        places, flags = torch.stack([p for _, p, _ in self._seen]), torch.stack([f for _, _, f in self._seen])
        copy = pinned((2, len(self._seen)), torch.int64, self._device)
        copy.copy_(torch.stack([places, flags.to(torch.int64)]), non_blocking=True)
        self._told.append(([row for row, _, _ in self._seen], copy, current_stream(self._device).record_event()))
        self._seen = []

    def pop_late_error(self) -> NonFiniteGradientError | None:
        told, self._told = self._told, []
        for rows, copy, copied in told:
            copied.synchronize()
            places: list[int]
            flags: list[int]
            places, flags = copy.tolist()
            for (bucket, stays), place, is_finite in zip(rows, places, flags, strict=True):
                if not is_finite:
                    self.record(bucket, place) if stays else self.blame(bucket, place)
        return self.pop_error()
