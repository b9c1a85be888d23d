"""NaN and Inf in gradients: which parameter of which rank holds one, and the error that says so."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from pliant.codecs import all_finite, first_nonfinite, scale_and_check
from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small
from pliant.engine.bucket_layout import BucketLayout

__all__ = ["Findings", "HostFindings", "NonFinite", "NonFiniteGradientError", "Place"]

NonFinite = Literal["raise", "propagate"]

Place = int | Tensor
"""Index of the first NaN or Inf in a bucket, -1 for none; of one on an accelerator int64 () there."""


class NonFiniteGradientError(FloatingPointError):
    """A gradient holds NaN or Inf; the message names the rank, the bucket and the parameter.

    Raised on every rank, or, where gradients are not exchanged, on the rank that has it.
    """

    of_plan = False
    """Whether all ranks' gradients were finite, and only the result of the plan is not."""


class Findings(ABC):
    """Base of the findings of NaN and Inf in a run's gradients.

    Args:
        comm: Comm of all ranks, which carries tensors of the host.
        raises: Whether a NaN or Inf is an error; else only scales are applied.

    """

    def __init__(self, comm: Comm, *, raises: bool) -> None:
        self._comm, self._raises = comm, raises
        self._refused: NonFiniteGradientError | None = None

    @abstractmethod
    def look(self, x: Tensor, factor: float | None) -> Place:
        """Multiply x, (numel,), by a factor, if there is one, and return the place of the first NaN or Inf."""

    @abstractmethod
    def poison(self, x: Tensor, place: Place) -> None:
        """Fill x with NaN if something was found in it, so that all ranks see it, whatever codecs keep."""

    @abstractmethod
    def either(self, first: Place, second: Place) -> Place:
        """Return the place that says most of two that belong to one exchange."""

    @abstractmethod
    def keep(self, bucket: BucketLayout, place: Place) -> None:
        """Keep the error of a gradient that stays on this rank."""

    @abstractmethod
    def judge(self, bucket: BucketLayout, result: Tensor, place: Place) -> None:
        """Look at a result, which is finite on all ranks or on none; if it is not, find out whose gradients were not.

        Args:
            bucket: Bucket of the result.
            result: All of it, or as much as says enough.
            place: Place of what this rank has found in its own gradients.

        """

    @abstractmethod
    def end_pass(self) -> None:
        """Note that a backward pass has handed over all of its buckets. Runs in the communication thread."""

    @abstractmethod
    def pop_late_error(self) -> NonFiniteGradientError | None:
        """Return, once, an error of the passes before that has become known since; collective if there is one."""

    def pop_error(self) -> NonFiniteGradientError | None:
        """Return, once, the first error that is known; with nothing in flight."""
        refused, self._refused = self._refused, None
        return refused

    def record(self, bucket: BucketLayout, place: int) -> None:
        """Keep the error of a gradient that stays on this rank, if there is one."""
        if place >= 0 and self._raises:
            self._record(f"rank {self._comm.rank}: {bucket.name}, parameter {bucket.name_at(place)}")

    def blame(self, bucket: BucketLayout, bad: int) -> None:
        """Find the ranks whose gradients were not finite, by 8 bytes from each to each, and keep the error."""
        all_bad = gather_small(self._comm, torch.tensor([bad], dtype=torch.int64)).flatten()  # (size,)
        culprits = [(rank, index) for rank, index in enumerate(all_bad.tolist()) if index >= 0]
        if not culprits:
            who = f"every rank's gradient was finite, but their sum in {bucket.name} overflowed"
        else:
            who = "; ".join(f"rank {r}: {bucket.name}, parameter {bucket.name_at(i)}" for r, i in culprits)
        self._record(who, of_plan=not culprits)

    def _record(self, who: str, *, of_plan: bool = False) -> None:
        if self._refused is None or (self._refused.of_plan and not of_plan):
            self._refused = NonFiniteGradientError(
                f"a gradient is NaN or Inf ({who}). No weight was changed. Lower the learning rate or clip; "
                'with a GradScaler, which expects this, pass nonfinite="propagate".'
            )
            self._refused.of_plan = of_plan


class HostFindings(Findings):
    """Findings in gradients on the CPU: each is known at once."""

    def look(self, x: Tensor, factor: float | None) -> Place:
        if factor is not None and scale_and_check(x, factor):
            return -1
        return first_nonfinite(x) if self._raises else -1

    def poison(self, x: Tensor, place: Place) -> None:
        if int(place) >= 0:
            x.fill_(torch.nan)

    def either(self, first: Place, second: Place) -> Place:
        return max(int(first), int(second))

    def keep(self, bucket: BucketLayout, place: Place) -> None:
        self.record(bucket, int(place))

    def judge(self, bucket: BucketLayout, result: Tensor, place: Place) -> None:
        if self._raises and not all_finite(result):
            self.blame(bucket, int(place))

    def end_pass(self) -> None:
        pass

    def pop_late_error(self) -> NonFiniteGradientError | None:
        return None
