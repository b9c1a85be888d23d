"""Weights of a bucket as other threads see them: posted between two steps, and corrected while the rank computes."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pliant.accelerator import current_stream, is_accelerator
from pliant.buckets import Bucket, as_real
from pliant.engine.algorithm_state import ANCHOR, CORRECTION
from pliant.engine.weight_parts import WeightPart

__all__ = ["AveragedWeights", "PostedWeights"]


class PostedWeights:
    """The weights of one bucket, which the training thread posts and other threads read and correct.

    Note [posted weights]: the training thread computes with the model's own weights, which nobody else touches. After a
    step, `post` adds the corrections that have come to them, and copies them to the bucket. Other threads see the
    bucket alone, and add what they change to it and to the corrections, both in one turn. Turns exclude each other, so
    that no thread sees a bucket of which a part is newer than the rest; on an accelerator, each turn's work on the
    device also follows that of the turn before.

    Args:
        part: The bucket; ``bucket.flat`` holds what is posted, and the slot "correction" what is to be added.

    """

    def __init__(self, part: WeightPart) -> None:
        self.part = part
        self._one_at_a_time = threading.Lock()
        self._device = part.bucket.flat.device
        self._last: Any = None
        """Event of the last turn's work on an accelerator."""
        self._is_corrected = True  # a loaded state may hold corrections

    @property
    def flat(self) -> Tensor:
        """The weights, float32 (numel,); to be read and written within a turn."""
        return self.part.bucket.flat

    @contextmanager
    def turn(self) -> Generator[None]:
        """Let no other thread come to the weights within the block."""
        with self._one_at_a_time:
            if self._last is not None:
                current_stream(self._device).wait_event(self._last)
            yield
            if is_accelerator(self._device):
                self._last = current_stream(self._device).record_event()

    def correct(self, by: Tensor | None) -> None:
        """Add a correction, float32 (numel,), to the weights that others see and to those to come. Within a turn."""
        if by is None:
            return
        self.flat.add_(by)
        self.part.state.flat[CORRECTION].add_(by)
        self._is_corrected = True

    @torch.no_grad()
    def post(self) -> None:
        """Add the corrections to the model's weights, and show those to other threads; in the training thread."""
        part, correction = self.part, self.part.state.flat[CORRECTION]
        with self.turn():
            if self._is_corrected:
                part.changed = [torch.linalg.vector_norm(correction)]
            at = 0
            for view, weight in zip(part.views, part.bucket.weights, strict=True):
                real = as_real(weight)
                if self._is_corrected:
                    real.add_(correction[at : at + view.numel()].view(view.shape))
                view.copy_(real)
                at += view.numel()
            if self._is_corrected:
                correction.zero_()
            self._is_corrected = False


class AveragedWeights:
    """Posted weights of a bucket, with memory for an exchange beside them.

    Args:
        part: The bucket.

    """

    def __init__(self, part: WeightPart) -> None:
        self.part, self.posted = part, PostedWeights(part)
        self.bucket: Bucket = replace(part.bucket, flat=torch.empty_like(part.bucket.flat))
        """The same parameters; ``bucket.flat`` holds what is exchanged."""
        self._change = torch.empty_like(part.bucket.flat)

    def read(self) -> None:
        """Take the posted weights into the exchange."""
        with self.posted.turn():
            self.bucket.flat.copy_(self.posted.flat)
            torch.neg(self.posted.flat, out=self._change)

    def follow(self) -> None:
        """Take the point that all set out from into the exchange; this rank's progress stays for a later one."""
        anchor = self.part.state.flat[ANCHOR]
        self.bucket.flat.copy_(anchor)
        torch.neg(anchor, out=self._change)

    def write(self) -> None:
        """Add what the exchange has changed to what is posted, whatever was posted meanwhile."""
        with self.posted.turn():
            self.posted.correct(self._change.add_(self.bucket.flat))
