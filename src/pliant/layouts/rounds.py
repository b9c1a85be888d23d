"""Rounds in which each rank meets a few others, and the messages that go so: rules of executor and simulator."""

from functools import cache
from typing import Literal, NamedTuple

__all__ = ["AverageForm", "Hop", "average_form", "codes_in_rounds", "forwards", "is_short", "rounds_among"]

AverageForm = Literal["gather", "halves", "ring"]

_MOST_PARTNERS = 7
"""Most ranks that a rank sends to in a round. A message takes 0.15 ms of its sender and 0.15 ms of its receiver
(`Overheads.message_s`); a round takes the links' delay, 0.1 to 40 ms. At 64 ranks, one partner a round would save 2 ms
and cost four more delays than two rounds of 7 partners; all 63 at once save a delay and cost 15 ms."""
_SHORT_BYTES = 1 << 14
"""Longest row that is gathered in rounds, where up to 7 flows meet at an interface and take 15 % longer
(`Overheads.sharing`). At 64 ranks and 100 Mbit/s that is as long as a ring's further messages from 28 KB on."""
_MESSAGE_BYTES = 1 << 12
"""Bytes that are forwarded to save a message: what 100 Mbit/s carry in its 0.3 ms."""
_GATHER_BYTES = 1 << 18
"""Up to so many bytes out of a rank, a gather takes less time than two halves on the networks that we know."""
_HALVES_BYTES = 1 << 22
"""Up to vectors of so many bytes, halves take less time than a ring's many rounds; then sends of all to one jam."""
_PARTS_BYTES = 1 << 19
"""The same for messages that must be short: measured, two hops of 0.2 MB take 1.09 of what the link allows at 100
Mbit/s, of 1.2 MB 1.41, and a ring 1.06."""


class Hop(NamedTuple):
    """One message of a round, alike on all ranks. Row j is that of the rank j further around the circle of ranks."""

    distance: int
    """Ranks to go."""
    count: int
    """Rows of a sum, `distance` to `distance + count - 1`, that go there as rows 0 to count - 1; in a gather they come
    from there."""
    rows: tuple[int, ...]
    """Rows of an all-to-all that go there, and those that come in their places."""


@cache
def rounds_among(size: int) -> tuple[tuple[Hop, ...], ...]:
    """Return the ceil(log_8 size) rounds of a gather or an all-to-all of `size` ranks; those of a sum are the reverse.

    The base is the least that needs no more rounds, at most 8. In a gather a rank has rows 0 to m - 1 before a round,
    m a power of the base, and gets as many from each of base - 1 ranks. In an all-to-all a row goes as far as its digit
    at m says. Any number of ranks will do.

    Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems (IEEE TPDS 8,
    1997), concatenation and index; Träff, Optimal, non-pipelined reduce-scatter and allreduce algorithms
    (https://arxiv.org/abs/2410.14234).
    """
    num_rounds, base = 0, 2
    while (_MOST_PARTNERS + 1) ** num_rounds < size:
        num_rounds += 1
    while base**num_rounds < size:
        base += 1
    rounds: list[tuple[Hop, ...]] = []
    have = 1
    while have < size:
        rounds.append(
            tuple(
                Hop(at, min(have, size - at), tuple(j for j in range(size) if j // have % base == at // have))
                for at in range(have, min(have * base, size), have)
            )
        )
        have *= base
    return tuple(rounds)


def is_short(row_bytes: float) -> bool:
    """Say whether rows of so many bytes are gathered in rounds, and not around a ring."""
    return row_bytes <= _SHORT_BYTES


def average_form(numel: int, size: int, *, in_parts: bool = False) -> AverageForm:
    """Return how `size` ranks average float32 vectors of `numel` elements.

    "gather": all get all vectors; "halves": parts are summed at their owners, who send the sums to all; "ring": an
    all-reduce. In parts, never "gather", in which more bytes go than in an all-reduce.
    """
    num_bytes = 4 * numel
    if num_bytes > max(_PARTS_BYTES if in_parts else _HALVES_BYTES, size * _SHORT_BYTES):
        return "ring"
    return "gather" if not in_parts and num_bytes * (size - 1) <= _GATHER_BYTES else "halves"


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

    They do where the messages that are saved, at 63 in place of 14 among 64 ranks, cost more than the further bytes.
    """
    hops = [hop for hops in rounds_among(size) for hop in hops]
    further_bytes = payload_bytes * (sum(len(hop.rows) for hop in hops) - (size - 1))
    return further_bytes <= _MESSAGE_BYTES * (size - 1 - len(hops))
