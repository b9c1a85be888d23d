"""Expectation of what a step moves and does, from frequencies alone: closed forms for any plan.

Each of n ranks draws k lookups of a table independently. A rank asks for a row of probability p with probability
1 - (1 - p)^k. Some rank touches it in m steps with 1 - (1 - p)^(k n m). A bag of s ids has something for an owner
whose rows have the share w of lookups with 1 - (1 - w)^s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.layouts.embedding_messages import sizes_bytes
from pliant.recsys.frequencies.bins import RowBins
from pliant.recsys.frequencies.rows import Frequencies
from pliant.recsys.frequencies.unique import probability_seen
from pliant.recsys.placement.loads import (
    PieceKinds,
    PieceLoad,
    asked_by_group,
    group_counts,
    num_lookups,
    num_on_all,
    shared_by,
)
from pliant.recsys.placement.traffic import PHASES, Sync, Traffic
from pliant.spec import EmbeddingPlan
from pliant.spec.embedding import Piece

__all__ = ["ExpectedLookups", "expected_lookups", "expected_traffic"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExpectedLookups:
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

    def load(self, kinds: PieceKinds) -> PieceLoad:
        """Return the loads of the pieces, with one requester for all."""
        return PieceLoad.of(
            kinds,
            self.ids[:, None],
            self.vectors[:, None],
            self.bags[:, None],
            self.lookups[:, None],
            self.warm[:, None],
            self.updated,
        )


def expected_traffic(plan: EmbeddingPlan, frequencies: Frequencies | RowBins, *, ahead: bool = False) -> Traffic:
    """Return what an average step of a plan moves and does, for lookups that are drawn from these frequencies.

    Args:
        plan: Any; the hot rows are the most frequent ones.
        frequencies: Of its tables, in its order; or the bins of them, if it is asked often.
        ahead: Whether batches are asked for ahead; see `count_traffic`.

    Raises:
        ValueError: The frequencies are of other tables.

    """
    bins = frequencies if isinstance(frequencies, RowBins) else RowBins.of(plan.tables, frequencies)
    pieces, n = plan.pieces(), plan.num_ranks
    found = expected_lookups(plan, pieces, bins)
    load = found.load(PieceKinds.of(plan, pieces)).total()
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
    touched = zip(pieces, found.touched.tolist(), strict=True)
    on_all = [(piece.dim, num_on_all(plan, piece), num) for piece, num in touched if num_on_all(plan, piece)]
    syncs = Sync.by_dim(on_all)
    return Traffic(
        num_bytes=num_bytes,
        num_messages=num_messages,
        syncs=syncs,
        sync_share=1 / plan.every,
        work=load.work(len(pieces), sum(each.dim * each.num_touched for each in syncs) / plan.every),
        num_lookups=num_lookups(shared),
        hierarchical=plan.hierarchical,
    )


def expected_lookups(plan: EmbeddingPlan, pieces: Sequence[Piece], bins: RowBins) -> ExpectedLookups:
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
    vectors = np.where(distinct, owned(cold * probability_seen(here.p, lookups[:, None])), all_ids)
    bags = num_bags[:, None] * here.filled(np.minimum(mass, 1.0))
    with np.errstate(divide="ignore"):
        silence = lookups[:, None] * np.log1p(-np.minimum(mass, 1 - 1e-15))
    union = lookups[:, None] * n
    return ExpectedLookups(
        ids=np.where(sums, all_ids, vectors),
        vectors=np.where(sums, bags, vectors),
        bags=bags,
        lookups=lookups,
        warm=lookups * (warm_rows * here.p).sum(axis=1),
        updated=owned(cold * probability_seen(here.p, union)),
        touched=(warm_rows * probability_seen(here.p, union * plan.every)).sum(axis=1),
        silence=silence,
    )
