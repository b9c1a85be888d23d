"""One round of an exchange: messages that travel at once, and the work before and after them; and for what it is."""

from dataclasses import dataclass, field

import numpy as np

from pliant.netmodel.messages import DenseExchange, Floats, HostExchange, PointToPoint, Together

__all__ = ["BucketBatch", "Round", "passes", "work"]

_ROUNDING = 1e-6
"""Tolerance in bytes for fractions that are whole numbers up to rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Messages that are sent at once, and the work of the busiest rank before and after them.

    Work is counted in elements (for a codec) or bytes, under the names of `netmodel.KEYS`, (num_buckets,) each. Where a
    message is cut into pieces, neighbouring stages overlap: of the last `after_share` of the messages, in
    `after_pieces` pieces, each is processed while the next is on its way.
    """

    messages: PointToPoint | DenseExchange | HostExchange | Together | None
    """None where ranks only compute."""
    repeat: int = 1
    """How often, one after another, such as 2 (n - 1) times around a ring."""
    before: dict[str, Floats] = field(default_factory=dict[str, Floats])
    before_pieces: Floats | None = None
    """(num_buckets,): how many pieces leave one by one while the next is worked on."""
    after: dict[str, Floats] = field(default_factory=dict[str, Floats])
    after_pieces: Floats | None = None
    after_share: float = 1.0
    split: Floats | None = None
    """(num_buckets,): in how many messages each of `messages` really goes."""
    posted: bool = False
    """Whether receivers have told senders before that they wait, see `Links.load`."""

    def sent(self, num_ranks: int) -> Floats:
        """Return whole bytes out of each rank, (num_buckets, num_ranks)."""
        if self.messages is None:
            return np.zeros((1, num_ranks))
        return np.floor(self.messages.sent(num_ranks) * self.repeat + _ROUNDING)

    def received(self, num_ranks: int) -> Floats:
        """Return whole bytes into each rank, (num_buckets, num_ranks)."""
        if self.messages is None:
            return np.zeros((1, num_ranks))
        return np.floor(self.messages.received(num_ranks) * self.repeat + _ROUNDING)


@dataclass(frozen=True, kw_only=True, eq=False)
class BucketBatch:
    """Parts of buckets that are exchanged alike; each by itself, but counted together."""

    numel: Floats
    """(num_buckets,) elements of each."""
    itemsize: Floats
    """(num_buckets,) bytes of an element where no codec is used."""
    shapes: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Per bucket, of its tensors; needed for low_rank."""
    held: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """(num_buckets, num_ranks): elements that each rank owns; needed for owners."""
    num_held: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """(num_buckets, num_ranks): tensors that each rank owns."""
    rows: Floats = field(default_factory=lambda: np.zeros((0, 4)))
    """(num_buckets, 4) of sparse gradients: rows of a rank, distinct ones over all ranks' rows, rows of the table, and
    bytes of a row's values; none elsewhere."""
    num_shards: int = 0
    """Ranks among which tensors are divided; 0 if nobody has said so."""


def work(before: dict[str, Floats]) -> Round:
    """Return a round without messages."""
    return Round(messages=None, before=before)


def passes(batch: BucketBatch, count: float) -> dict[str, Floats]:
    """Return so many passes over a batch in float32."""
    return {"reduce_bytes": 4 * count * batch.numel}
