"""Protocols of codecs: frozen values that compress a flat float32 tensor into bytes, alone, without communication."""

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Codec", "FusedFeedback", "SummableCodec"]


class Codec(Protocol):
    """Protocol of a codec: local compression of a vector, without communication.

    Inputs are contiguous float32 vectors; collectives convert other dtypes. Payloads are contiguous uint8 vectors of
    exactly `nbytes(numel)` bytes, so sizes are known without encoding and buffers are made once.

    An input that holds a NaN or an Inf gives a payload that decodes to at least one non-finite element: a gradient that
    overflowed on one rank is seen by all (GradScaler depends on it).
    """

    name: ClassVar[str]
    """Name in a plan's CodecSpec; the dataclass fields are its settings."""
    unbiased: ClassVar[bool]
    """Whether the mean over seeds of decode(encode(x)) is x."""

    @property
    def granularity(self) -> int:
        """Elements at multiples of which a vector may be cut: each part's payload is what it would be alone."""
        ...

    def nbytes(self, numel: int) -> int:
        """Return the exact payload size in bytes for `numel` elements; 0 for none."""
        ...

    def encode(self, x: Tensor, payload: Tensor, seed: int) -> None:
        """Write x, float32 (numel,), into payload, uint8 (nbytes(numel),). Equal seeds give equal payloads."""
        ...

    def decode(self, payload: Tensor, out: Tensor) -> None:
        """Overwrite out, float32 (numel,)."""
        ...

    def decode_add(self, payload: Tensor, acc: Tensor) -> None:
        """Add the decoded elements to acc, float32 (numel,), in one pass."""
        ...


@runtime_checkable
class FusedFeedback(Protocol):
    """A codec with its own one-pass kernel for x + residual -> payload, new residual."""

    def encode_feedback(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        """Encode x + residual, all float32 (numel,), and leave in residual what the payload does not carry."""
        ...


@runtime_checkable
class SummableCodec(Protocol):
    """A codec whose payloads may be added up on the way, so that an all-reduce can carry them."""

    def summands(self, payload: Tensor) -> Tensor:
        """Return a typed view of the part of the payload that adds up; the rest is equal on all ranks."""
        ...
