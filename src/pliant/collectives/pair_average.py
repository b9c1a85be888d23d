"""Averages of two ranks' vectors, by one message each way: in full precision, or as coded differences to replicas."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pliant.codecs import Codec

__all__ = ["CodedPairAverage", "PairAverage", "PairRule"]


class PairRule(Protocol):
    """Protocol of an exchange of two ranks' vectors x_a and x_b, of which rank a begins.

    Rank a says something, rank b answers, and each adds a correction to its own vector. In an average the two are equal
    but for the sign, to the bit, so that the mean of both stays, also if a vector has changed since it was sent.
    """

    @property
    def num_bytes(self) -> int:
        """Bytes of each of the two messages."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """Numbers from which a resumed run goes on, always as many; a checkpoint has them beside the slots."""
        ...

    @counts.setter
    def counts(self, saved: Sequence[int]) -> None: ...

    def ask(self, peer: int, x: Tensor, message: Tensor, seed: int) -> None:
        """Fill a's message, uint8 (num_bytes,), from its vector, float32 (numel,)."""
        ...

    def answer(self, peer: int, x: Tensor, message: Tensor, seed: int) -> Tensor | None:
        """Return b's correction, float32 (numel,), or None for none; put b's answer in the place of a's message."""
        ...

    def take(self, peer: int, message: Tensor) -> Tensor | None:
        """Return a's correction likewise, given b's answer."""
        ...


class PairAverage:
    """Mean of two vectors in full precision: a sends x_a, b answers with d = (x_a - x_b) / 2.

        x_b <- x_b + d;  x_a <- x_a - d

    Lian et al., AD-PSGD (arXiv:1710.06952), Algorithm 1, with W_ij = 1/2 for the two that meet. Rank a may have changed
    x_a by the time that d comes, as in the non-blocking form of SwarmSGD (Nadiradze et al., arXiv:1910.12308). Bytes:
    4 N each way. The result of `answer` and `take` is a part of the message, which holds it until it is used.

    Args:
        numel: N, elements of each vector.

    """

    def __init__(self, numel: int) -> None:
        self.num_bytes = 4 * numel
        self.counts: Sequence[int] = ()

    def ask(self, peer: int, x: Tensor, message: Tensor, seed: int) -> None:
        message.view(torch.float32).copy_(x)

    def answer(self, peer: int, x: Tensor, message: Tensor, seed: int) -> Tensor:
        return message.view(torch.float32).sub_(x).mul_(0.5)

    def take(self, peer: int, message: Tensor) -> Tensor:
        return message.view(torch.float32).neg_()


class CodedPairAverage:
    """Step towards the mean of two vectors by coded differences to replicas of both that both keep.

    Each pair has two replicas r_a and r_b, equal to the bit on both ranks, since both decode the same bytes:

        q_a = C(x_a - r_a);  r_a <- r_a + q_a;   q_b = C(x_b - r_b);  r_b <- r_b + q_b
        d = gamma / 2 (r_a - r_b);   x_b <- x_b + d;   x_a <- x_a - d

    This is Koloskova et al., CHOCO-SGD (arXiv:1902.00340), Algorithm 2, on a graph of two nodes with W_ij = 1/2. What a
    codec loses stays in the difference. Bytes: one payload each way. Memory: two replicas for each neighbour.

    Args:
        codec: Any codec.
        numel: N, elements of each vector.
        gamma: Share of the way to the mean of the replicas.
        own: Neighbour -> replica of this rank's vector, float32 (numel,).
        others: Neighbour -> replica of the neighbour's vector, float32 (numel,).

    """

    def __init__(
        self, codec: Codec, numel: int, *, gamma: float, own: Mapping[int, Tensor], others: Mapping[int, Tensor]
    ) -> None:
        self._codec, self._gamma, self._own, self._others = codec, gamma, own, others
        self.num_bytes = codec.nbytes(numel)
        self.counts: Sequence[int] = ()

    def ask(self, peer: int, x: Tensor, message: Tensor, seed: int) -> None:
        replica = self._own[peer]
        self._codec.encode(x - replica, message, seed)
        self._codec.decode_add(message, replica)

    def answer(self, peer: int, x: Tensor, message: Tensor, seed: int) -> Tensor:
        self._codec.decode_add(message, self._others[peer])
        self.ask(peer, x, message, seed)
        return self._way(peer)

    def take(self, peer: int, message: Tensor) -> Tensor:
        self._codec.decode_add(message, self._others[peer])
        return self._way(peer)

    def _way(self, peer: int) -> Tensor:
        return (self._others[peer] - self._own[peer]).mul_(self._gamma / 2)
