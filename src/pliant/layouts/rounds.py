"""Rounds in which each rank meets a few others, and the messages that go so: rules of executor and simulator."""

from functools import cache
from typing import Literal, NamedTuple

__all__ = [
    "AverageForm",
    "Hop",
    "average_form",
    "codes_in_rounds",
    "forwards",
    "gathers_in_rounds",
    "is_short",
    "rounds_among",
]

AverageForm = Literal["gather", "halves", "ring"]

_MESSAGE_S, _DELAY_S, _BYTES_PER_S = 3e-4, 5e-3, 1.25e7
"""Time of a message for its two ranks (twice `Overheads.message_s`), delay and rate (100 Mbit/s) of the links for which
rounds are chosen: all ranks must choose alike, before links are known. At 64 ranks all others at once would cost 63
messages and a delay, 24 ms, two rounds cost 14 messages and two delays, 14 ms, and six of one partner each 32 ms. Links
with a delay below 15 ms gain by two, others lose."""
_SHORT_BYTES = 1 << 14
"""Longest row that goes in rounds among any number of ranks, where flows that meet at an interface take up to 17 %
longer (`Overheads.sharing`). At 64 ranks and 100 Mbit/s that is as long as a ring's further messages from 28 KB on."""
_GATHER_BYTES = 1 << 18
"""Up to so many bytes out of a rank, a gather takes less time than two halves on the networks that we know."""
_HALVES_BYTES = 1 << 22
"""Up to vectors of so many bytes, halves take less time than a ring's many rounds; then sends of all to one jam."""
_PARTS_BYTES = 1 << 19
"""The same where few bytes must go: measured, two halves of 0.2 MB take 1.09 of what the link allows at 100
Mbit/s, of 1.2 MB 1.41, and a ring 1.06. A gather that brings a rank more bytes than this goes around a ring too."""


class Hop(NamedTuple):
    """One message of a round, alike on all ranks. Row j is that of the rank j further around the circle of ranks."""

    distance: int
    """Ranks to go."""
    num_rows: int
    """Rows of a sum, `distance` to `distance + num_rows - 1`, that go there as rows 0 to num_rows - 1; in a gather they
    come from there."""
    rows: tuple[int, ...]
    """Rows of an all-to-all that go there, and those that come in their places."""


@cache
def rounds_among(size: int, num_rounds: int = 0) -> tuple[tuple[Hop, ...], ...]:
    """Return the rounds of a gather or an all-to-all of `size` ranks; those of a sum are the reverse.

    There are `num_rounds`, or as many as take the least time: one up to 26 ranks, two up to 324, and so on with the
    logarithm. The base is the least one whose power by the number of rounds reaches the size. In a gather a rank has
    rows 0 to m - 1 before a round, m a power of the base, and gets as many from each of base - 1 ranks. In an
    all-to-all a row goes as far as its digit at m says. Any number of ranks will do.

    Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems (IEEE TPDS 8,
    1997), concatenation and index; Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms
    (https://arxiv.org/abs/2410.14234).
    """
    if not num_rounds:
        return min((rounds_among(size, k) for k in range(1, max(2, size.bit_length() + 1))), key=_seconds)
    base = next(base for base in range(2, size + 2) if base**num_rounds >= size)
    rounds: list[tuple[Hop, ...]] = []
    have = 1
    while have < size:
        hops = range(have, min(have * base, size), have)
        rounds.append(tuple(Hop(at, min(have, size - at), _rows(at, have, have * base, size)) for at in hops))
        have *= base
    return tuple(rounds)


def _rows(at: int, width: int, step: int, size: int) -> tuple[int, ...]:
    """Return `width` rows from each of `at`, `at + step`, ... on, below size."""
    return tuple(j for start in range(at, size, step) for j in range(start, min(start + width, size)))


def _seconds(rounds: tuple[tuple[Hop, ...], ...]) -> float:
    """Return the time of delays and messages, without bytes."""
    return len(rounds) * _DELAY_S + sum(map(len, rounds)) * _MESSAGE_S


def is_short(row_bytes: float) -> bool:
    """Say whether rows of so many bytes go in rounds among any number of ranks."""
    return row_bytes <= _SHORT_BYTES


def gathers_in_rounds(row_bytes: float, size: int) -> bool:
    """Say whether all get a row of so many bytes from each in few rounds, and not around a ring of size - 1 turns.

    As many bytes go either way, but each turn of a ring waits for the links' delays, over Gloo there and back. Straight
    messages lose where many bytes meet at an interface. Between two ranks none meet.
    """
    return size == 2 or is_short(row_bytes) or row_bytes * (size - 1) <= _PARTS_BYTES


def average_form(numel: int, size: int, *, in_parts: bool = False) -> AverageForm:
    """Return how `size` ranks average float32 vectors of `numel` elements.

    "gather": all get all vectors; "halves": parts are summed at their owners, who send the sums to all; "ring": an
    all-reduce. In parts, "gather" between two only: elsewhere more bytes go so than in an all-reduce.
    """
    num_bytes = 4 * numel
    if num_bytes > max(_PARTS_BYTES if in_parts else _HALVES_BYTES, size * _SHORT_BYTES):
        return "ring"
    gathers = num_bytes * (size - 1) <= _GATHER_BYTES and (size == 2 or not in_parts)
    return "gather" if gathers else "halves"


def codes_in_rounds(payload_bytes: int, part_numel: int, chunk_bytes: int, size: int) -> bool:
    """Say whether the payloads of a coded average's parts are gathered in rounds: short, of one piece, of many ranks.

    Args:
        payload_bytes: Of the largest part.
        part_numel: Its elements.
        chunk_bytes: Uncompressed bytes of a piece.
        size: Number of ranks.

    """
    return is_short(payload_bytes) and 4 * part_numel <= chunk_bytes and len(rounds_among(size)) > 1


def forwards(payload_bytes: int, size: int) -> bool:
    """Say whether payloads that are gathered in rounds also come to their owners in rounds, by way of other ranks.

    They do where the messages that are saved, at 64 ranks 49 of 63, cost more than the further bytes and delays.
    """
    rounds = rounds_among(size)
    num_rows = sum(len(hop.rows) for hops in rounds for hop in hops)
    at_once_s = _DELAY_S + (size - 1) * (_MESSAGE_S + payload_bytes / _BYTES_PER_S)
    return _seconds(rounds) + num_rows * payload_bytes / _BYTES_PER_S <= at_once_s
