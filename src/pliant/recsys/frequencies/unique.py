"""Expectations over batches from frequencies: different rows, rows of each owner, lookups of hot rows. Closed forms.

k lookups, drawn independently, touch row i with probability 1 - (1 - p_i)^k. Lookups within a bag of a real log are
without repetition, and sessions repeat rows, so for a log these are upper bounds; they are equal to the mean for drawn
data.
"""

import math

import numpy as np
import numpy.typing as npt

from pliant.recsys.frequencies.rows import Frequencies, RowFrequencies

__all__ = ["probability_all_hot", "probability_seen", "unique_by_owner", "unique_rows"]

Floats = npt.NDArray[np.float64]


def probability_seen(p: Floats, num_lookups: Floats | float) -> Floats:
    """Return 1 - (1 - p)^k: the probability that a row, of probability p, is among k lookups; exact also for tiny p."""
    with np.errstate(divide="ignore", invalid="ignore"):  # log(0) = -inf is right for a row that is every lookup
        found = -np.expm1(num_lookups * np.log1p(-np.minimum(p, 1.0)))
    return np.where(np.asarray(num_lookups) > 0, found, 0.0)


def unique_rows(table: RowFrequencies, num_lookups: float, *, num_hot: float = 0) -> float:
    """Return the expected number of different rows among k lookups, sum of 1 - (1 - p_i)^k, without the hottest rows.

    For a rank's batch k = samples x table.pooling, for all ranks' batches k = ranks x samples x table.pooling. The
    variance is at most the mean. Counts of a log of N lookups know nothing rarer than 1 / N: for k up to N / 50 the
    result is within about 1 %, for k = N / 10 about 4 % too low.
    """
    p, rows = table.beyond(num_hot)
    return float(rows @ probability_seen(p, num_lookups))


def unique_by_owner(
    table: RowFrequencies, num_lookups: float, *, table_index: int, num_ranks: int, num_hot: int = 0
) -> Floats:
    """Return the expected number of different rows (num_ranks,) among k lookups, by the rank that has them.

    Row i of table t lives at rank (i + t) mod n. Rows of the head go to their owners, rows of the tail, whose ids are
    not kept, in equal shares to all.
    """
    p, rows = table.beyond(num_hot)
    expected = rows * probability_seen(p, num_lookups)
    head = table.head_ids.size
    owners = (table.head_ids + table_index) % num_ranks
    return np.bincount(owners, expected[:head], num_ranks) + expected[head:].sum() / num_ranks


def probability_all_hot(
    frequencies: Frequencies, num_hot: list[int] | tuple[int, ...], *, num_samples: int = 1
) -> float:
    """Return the probability that all lookups of some samples, in all tables, are of the hot rows of their table.

    With h the share of lookups that the hot rows take: the product over tables of the mean of h^(bag size), to the
    power of samples. Such a batch needs no exchange.
    """
    per_sample = 1.0
    for table, hot in zip(frequencies.tables, num_hot, strict=True):
        share = table.hot_share(hot)
        per_sample *= float(table.bag_shares @ share ** np.arange(table.bag_shares.size))
    return math.pow(min(per_sample, 1.0), num_samples)
