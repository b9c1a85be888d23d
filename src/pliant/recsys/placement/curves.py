"""The cost of each table by how many of its rows are on all ranks: curves over bins, for all tables at once.

Where loads are spread evenly over ranks, seconds and bytes are linear in what is asked: so much for an id, a vector, a
bag, a lookup, a row updated, a row touched. The prices come from the cost framework itself, asked for one of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links
from pliant.recsys.frequencies.bins import RowBins
from pliant.recsys.frequencies.unique import probability_seen
from pliant.recsys.placement.expected_traffic import ExpectedLookups
from pliant.recsys.placement.loads import PieceKinds, num_on_all
from pliant.recsys.placement.memory import held_by_piece
from pliant.recsys.placement.rates import Rates
from pliant.spec import EmbeddingPlan
from pliant.spec.embedding import Piece

__all__ = ["ROWS", "Quantities", "ResourcePrices", "contribution", "one_byte_each_s", "priced"]

Floats = npt.NDArray[np.float64]

_CHUNK = 256
"""Pieces at a time"""
ROWS = 6 + 2 + 4 + 2 + 1
"""Of a contribution: seconds of the stages; bytes of requests and vectors that each rank asks each owner for; bytes
held (shards, replicas, messages, change); bytes all-reduced a step (of rows, of gradients); log of silence."""


@dataclass(frozen=True, kw_only=True)
class ResourcePrices:
    """Weight of a second of work and of links when tables are chosen one by one; more than 1 where it is scarce."""

    work: float = 1.0
    wire: float = 1.0


def contribution(plan: EmbeddingPlan, pieces: Sequence[Piece], found: ExpectedLookups, rates: Rates) -> list[Floats]:
    """Return what each piece adds to every rank, (15, ranks): see ROWS. It does not depend on other pieces."""
    num_all = np.array([num_on_all(plan, piece) for piece in pieces], np.float64)
    found_rows: list[Floats] = []
    for first in range(0, len(pieces), _CHUNK):  # all at once would be a matrix of ranks for each piece
        part = slice(first, first + _CHUNK)
        here = ExpectedLookups(*(getattr(found, name)[part] for name in ExpectedLookups.__dataclass_fields__))
        kinds = PieceKinds.of(plan, pieces[part])
        load = here.load(kinds)
        reduced = np.stack([num_all[part], 4 * kinds.dim * here.touched], axis=1) / plan.every  # (m, 2)
        work = load.work(1, (kinds.dim * here.touched / plan.every)[:, None])  # (stages, counts, m, ranks)
        stages = np.einsum("scmr,c->msr", work, rates.counts_s)
        asks = np.moveaxis(load.pairs[:2, :, 0], 0, 1)
        memory = held_by_piece(plan, pieces[part], here)
        spread = np.broadcast_to(reduced[:, :, None], (*reduced.shape, plan.num_ranks))
        found_rows += list(np.concatenate([stages, asks, memory, spread, here.silence[:, None]], axis=1))
    return found_rows


def one_byte_each_s(links: Links) -> float:
    """Return how long links are busy if every rank sends one byte to every other."""
    one = links.by_host(1 - np.eye(links.num_ranks))[None]  # (1, hosts, hosts)
    return float(links.between_hosts(one, one).busy_s[0])


def priced(row: Floats, links: Links, prices: ResourcePrices, sync_s: float) -> tuple[float, float]:
    """Return seconds of a step and mean bytes held of a contribution (15, ranks), as if others balanced it.

    Args:
        row: The contribution.
        links: Of its ranks.
        prices: Of work and links.
        sync_s: Seconds per byte all-reduced.

    """
    mean = row.mean(axis=1)
    pair_s = one_byte_each_s(links)
    wire_s = pair_s * (mean[6] + 2 * mean[7]) + sync_s * (mean[12] + mean[13])
    return prices.work * float(mean[:6].sum()) + prices.wire * wire_s, float(
        mean[8] + mean[9] + max(mean[10], mean[11])
    )


@dataclass(frozen=True, eq=False)
class Quantities:
    """Demands on tables (t, c) if their most frequent rows are on all ranks, for each cut between bins."""

    num_hot: Floats
    """(t, c)"""
    vectors: Floats
    """(t, c), distinct rows that a rank asks for"""
    ids: Floats
    """(t, c), lookups of them"""
    bags: Floats
    """(t, c), pairs of a bag and an owner with something for each other"""
    updated: Floats
    """(t, c), rows updated, of all owners"""
    touched: Floats
    """(t, c), rows on all ranks that anybody touches in `every` steps"""

    @classmethod
    def of(cls, bins: RowBins, plan: EmbeddingPlan) -> "Quantities":
        """Compute them for all tables of a plan, as far as batch, ranks and `every` say."""
        n, num_bags = plan.num_ranks, np.array(plan.num_bags)[:, None]
        lookups = num_bags * bins.pooling[:, None]

        def beyond(values: Floats) -> Floats:
            """Sum from each cut on."""
            sums = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
            return np.concatenate([sums, np.zeros((len(values), 1))], axis=1)

        mass = beyond(bins.rows * bins.p)
        union = bins.rows * probability_seen(bins.p, lookups * n * plan.every)
        return cls(
            num_hot=np.concatenate([bins.before, (bins.before[:, -1:] + bins.rows[:, -1:])], axis=1),
            vectors=beyond(bins.rows * probability_seen(bins.p, lookups)),
            ids=lookups * mass,
            bags=n * num_bags * bins.filled(np.clip(mass / n, 0.0, 1.0)),
            updated=beyond(bins.rows * probability_seen(bins.p, lookups * n)),
            touched=np.concatenate([np.zeros((len(union), 1)), np.cumsum(union, axis=1)], axis=1),
        )
