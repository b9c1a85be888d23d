"""Ways of sparse gradients, as pairs of index and values or dense: rules of executor and simulator."""

from collections.abc import Sequence
from typing import Literal

__all__ = ["cheapest_way"]

Way = Literal["gather", "owners", "dense"]

_ROUND_BYTES = 1 << 16
"""Bytes that must be saved for another way than a gather, which takes fewer rounds of messages."""


def cheapest_way(rows: Sequence[float], distinct: float, num_rows: int, row_bytes: int) -> Way:
    """Return the way in which a rank sends fewest bytes; "dense" only where it does whatever `distinct` is.

    So a resumed run, which does not know `distinct`, goes on to the bit: only "dense" adds up in another order.

    Args:
        rows: Rows that each rank has.
        distinct: Rows of the mean over the sum of `rows`: below 1 where ranks share rows.
        num_rows: Rows of the table.
        row_bytes: Bytes of a row's values.

    >>> cheapest_way([4000] * 4, 1.0, 10**6, 256), cheapest_way([4000] * 4, 0.3, 10**6, 256)
    ('gather', 'owners')
    >>> cheapest_way([49_900] * 4, 0.9, 50_000, 256)
    'dense'

    """
    n, most, pair_bytes = len(rows), max(rows), 8 + row_bytes
    gather_bytes = (n - 1) * most * pair_bytes
    owners_bytes = (n - 1) / n * (most + distinct * sum(rows)) * pair_bytes
    dense_bytes = 2 * (n - 1) / n * num_rows * (row_bytes + 1)
    if dense_bytes <= 2 * (n - 1) / n * most * pair_bytes and gather_bytes - dense_bytes >= _ROUND_BYTES:
        return "dense"
    return "owners" if gather_bytes - owners_bytes >= _ROUND_BYTES else "gather"
