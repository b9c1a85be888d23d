"""A bucket: a flat group of tensors that is exchanged together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Bucket", "Span", "as_real", "real_shape", "spans_of"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Place of one parameter in a bucket."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the parameter."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(kw_only=True)
class Bucket:
    """Gradients or weights of several parameters, one after another in one flat tensor."""

    name: str
    """Short and the same on all ranks, such as 'bucket 2'; errors and timelines use it."""
    spans: tuple[Span, ...]
    """Parameters in the order in which they lie in `flat`, without gaps."""
    weights: tuple[Tensor, ...] = ()
    """The parameters themselves, in the same order; `as_real` gives one the shape of its span."""
    flat: Tensor
    """(numel,), contiguous, any floating dtype. The engine puts this step's tensor here before each exchange."""
    parts: tuple[tuple[int, tuple[int, int]], ...] = ()
    """Owner of each part of a parameter, and its range in `flat`, in their order; empty without owners."""

    @property
    def numel(self) -> int:
        """Elements in the bucket."""
        return self.flat.numel()

    def view(self, span: Span) -> Tensor:
        """Return the parameter's part of the bucket in its own shape."""
        return self.flat[span.offset : span.offset + span.numel].view(span.shape)


def as_real(x: Tensor) -> Tensor:
    """Return x itself, or, if it is complex, its pairs of real numbers: a detached view, (*shape, 2)."""
    return torch.view_as_real(x.detach()) if x.is_complex() else x


def real_shape(x: Tensor) -> tuple[int, ...]:
    """Return the shape of `as_real`: how a parameter lies in a bucket."""
    return (*x.shape, 2) if x.is_complex() else tuple(x.shape)


def spans_of(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    """Lay parameters one after another."""
    spans: list[Span] = []
    offset = 0
    for name, shape in zip(names, shapes, strict=True):
        spans.append(Span(name=name, offset=offset, shape=tuple(shape)))
        offset += spans[-1].numel
    return tuple(spans)
