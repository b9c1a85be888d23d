"""Expectation of what a step moves and does, from frequencies alone: closed forms for any plan.

With k lookups of a table on each of n ranks, drawn independently, a row of probability p is asked for by a rank with
probability 1 - (1 - p)^k, and touched by anybody in m steps with 1 - (1 - p)^(k n m). A bag of s ids has something
for an owner whose rows have the share w of lookups with 1 - (1 - w)^s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.recsys.bins import RowBins, draws
from pliant.recsys.rows import Frequencies
from pliant.recsys.traffic import (
    PHASES,
    Kinds,
    Load,
    Sync,
    Traffic,
    asked_by_group,
    group_counts,
    num_lookups,
    shared_by,
)
from pliant.recsys.wire import sizes_bytes
from pliant.spec import EmbeddingPlan
from pliant.spec.embedding import Piece

__all__ = ["Asked", "asked", "expected"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Asked:
    """Expected demands on pieces (m,) in a step."""

    ids: Floats
    """(m, ranks), that each rank asks each owner for"""
    vectors: Floats
    """(m, ranks), that each owner answers each rank with"""
    bags: Floats
    """(m, ranks)"""
    lookups: Floats
    """(m,), of each rank"""
    warm: Floats
    """(m,), of rows on all ranks"""
    updated: Floats
    """(m, ranks), rows that an owner updates"""
    touched: Floats
    """(m,), rows on all ranks that anybody touches in `every` steps"""
    silence: Floats
    """(m, ranks), logarithm of the probability that a rank asks an owner for nothing"""

    def load(self, kinds: Kinds) -> Load:
        """Return the loads of the pieces, with one requester for all."""
        return Load.of(
            kinds,
            self.ids[:, None],
            self.vectors[:, None],
            self.bags[:, None],
            self.lookups[:, None],
            self.warm[:, None],
            self.updated,
        )


def expected(plan: EmbeddingPlan, frequencies: Frequencies | RowBins, *, ahead: bool = False) -> Traffic:
    """Return what an average step of a plan moves and does, for lookups that are drawn from these frequencies.

    Args:
        plan: Any; the hot rows are the most frequent ones.
        frequencies: Of its tables, in its order; or the bins of them, if it is asked often.
        ahead: Whether batches are asked for ahead; see `counted`.

    Raises:
        ValueError: The frequencies are of other tables.

    """
    bins = frequencies if isinstance(frequencies, RowBins) else RowBins.of(plan.tables, frequencies)
    pieces, n = plan.pieces(), plan.num_ranks
    found = asked(plan, pieces, bins)
    load = found.load(Kinds.of(plan, pieces)).total()
    apart = 1 - np.eye(n)
    speaks = -np.expm1(found.silence.sum(axis=0))
    shared = shared_by(plan, pieces)
    sizes = np.full(n, sizes_bytes(*group_counts(shared)), np.float64)
    asks = [sizes, load.pairs[0, 0], load.pairs[1, 0], load.pairs[1, 0]]
    num_bytes = np.stack([np.broadcast_to(each, (n, n)) for each in asks])
    if ahead:  # whole bytes: of the last one half is empty, on average
        masks = (asked_by_group(plan, pieces, found.vectors) + 3.5) / 8
        num_bytes[1] += masks.sum(axis=0)[:, None]
    num_bytes = num_bytes * apart
    num_messages = np.stack([np.broadcast_to(each, (n, n)) for each in [sizes > 0] + 3 * [speaks]]) * apart
    answer = PHASES.index("answer")
    num_bytes[answer], num_messages[answer] = num_bytes[answer].T, num_messages[answer].T
    syncs = _syncs(plan, pieces, found.touched)
    return Traffic(
        num_bytes=num_bytes,
        num_messages=num_messages,
        syncs=syncs,
        sync_share=1 / plan.every,
        work=load.work(len(pieces), sum(each.dim * each.num_touched for each in syncs) / plan.every),
        num_lookups=num_lookups(shared),
        hierarchical=plan.hierarchical,
    )


def asked(plan: EmbeddingPlan, pieces: Sequence[Piece], bins: RowBins) -> Asked:
    """Return what is expected of each of some pieces of a plan, from the bins of its tables."""
    n = plan.num_ranks
    index = np.array([piece.index for piece in pieces], np.int64)
    homes = np.array([-1 if piece.home is None else piece.home for piece in pieces])
    of_all = np.array([piece.layout.kind == "replicated" for piece in pieces])
    hot = np.array([piece.layout.num_hot for piece in pieces], np.float64)
    sums = np.array([piece.layout.moves == "sums" for piece in pieces])[:, None]
    distinct = np.array([piece.layout.distinct for piece in pieces])[:, None]
    here = bins.only(index)
    num_bags = np.array(plan.num_bags)[index]
    lookups = num_bags * here.pooling
    cold = here.cold(np.where(of_all, np.inf, hot))
    warm_rows = here.rows - cold

    def owned(values: Floats) -> Floats:
        """Sum values of bins by owner, or all of them at home."""
        spread = here.by_owner(values, index, n)
        at_home = (np.arange(n) == homes[:, None]) * values.sum(axis=1)[:, None]
        return np.where(homes[:, None] < 0, spread, at_home)

    mass = owned(cold * here.p)
    all_ids = lookups[:, None] * mass
    vectors = np.where(distinct, owned(cold * draws(here.p, lookups[:, None])), all_ids)
    bags = num_bags[:, None] * here.filled(np.minimum(mass, 1.0))
    with np.errstate(divide="ignore"):
        silence = lookups[:, None] * np.log1p(-np.minimum(mass, 1 - 1e-15))
    union = lookups[:, None] * n
    return Asked(
        ids=np.where(sums, all_ids, vectors),
        vectors=np.where(sums, bags, vectors),
        bags=bags,
        lookups=lookups,
        warm=lookups * (warm_rows * here.p).sum(axis=1),
        updated=owned(cold * draws(here.p, union)),
        touched=(warm_rows * draws(here.p, union * plan.every)).sum(axis=1),
        silence=silence,
    )


def _syncs(plan: EmbeddingPlan, pieces: Sequence[Piece], touched: Floats) -> tuple[Sync, ...]:
    totals: dict[int, tuple[float, float]] = {}
    for piece, num_touched in zip(pieces, touched, strict=True):
        is_all = piece.layout.kind == "replicated"
        num_rows = plan.tables[piece.index].num_rows if is_all else piece.layout.num_hot
        if num_rows:
            before = totals.get(piece.dim, (0.0, 0.0))
            totals[piece.dim] = (before[0] + num_rows, before[1] + float(num_touched))
    return tuple(
        Sync(dim=dim, num_rows=rows, num_touched=num_touched) for dim, (rows, num_touched) in sorted(totals.items())
    )
