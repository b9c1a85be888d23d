"""Protocols of codecs: frozen values that compress a flat float32 tensor into bytes, alone, without communication."""

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Codec", "FusedFeedback", "FusedOwner", "SummableCodec"]


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
class FusedOwner(Protocol):
    """A codec that may do all of an owner's step in one pass, where the kernels for a device can."""

    def fuses(self, x: Tensor) -> bool:
        """Say whether that is so where a tensor lies; else `encode_gated` and `encode_mean` must not be called."""
        ...

    def encode_gated(self, x: Tensor, residual: Tensor, payload: Tensor, seed: int) -> None:
        """Do what `encode_feedback` of `pliant.codecs` does, without a look from the host, in two launches."""
        ...

    def encode_mean(
        self, total: Tensor, owed: Tensor | None, payloads: Tensor, payload: Tensor, seed: int, *, feedback: bool
    ) -> None:
        """Add up, divide, encode the mean and decode it.

        With s ranks: v = (total + `owed` + sum of the decoded payloads, in their order) / s; payload <- C(v); total <-
        what the payload says; `owed` <- s (v - total) with feedback, else 0. What is not finite keeps its residual.

        Args:
            total: This rank's own part, float32 (numel,).
            owed: Residual of this rank's part of the sum, float32 (numel,), or None.
            payloads: What the others sent, uint8 (s - 1, row), each row begun by a payload; row % 16 == 0.
            payload: uint8 (nbytes(numel),), overwritten.
            seed: Seed of random numbers.
            feedback: Whether the error of the mean is kept.

        """
        ...


@runtime_checkable
class SummableCodec(Protocol):
    """A codec whose payloads may be added up on the way, so that an all-reduce can carry them."""

    def summands(self, payload: Tensor) -> Tensor:
        """Return a typed view of the part of the payload that adds up; the rest is equal on all ranks."""
        ...
