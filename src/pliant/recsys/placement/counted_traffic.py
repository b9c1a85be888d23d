"""Count, from the ids of batches, exactly what the sharded tables send in a step."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pliant.layouts.embedding_messages import sizes_bytes
from pliant.recsys.placement.loads import PieceKinds, PieceLoad, asked_by_group, group_counts, num_lookups, shared_by
from pliant.recsys.placement.traffic import Sync, Traffic
from pliant.spec import EmbeddingPlan, Table
from pliant.spec.embedding import Piece

__all__ = ["Bags", "count_traffic"]

Ids = npt.NDArray[np.int64]
Bags = Any
"""Of one table: ids (bags, size), or a tuple of ids (k,) and where bags begin (bags,), and perhaps weights."""


def count_traffic(
    plan: EmbeddingPlan,
    steps: Sequence[Sequence[Sequence[Bags]]],
    hot: Mapping[str, Any] | None = None,
    *,
    ahead: bool = False,
) -> tuple[Traffic, ...]:
    """Return what each of some consecutive steps of the module sends and does, to the byte.

    Rows on all ranks are synchronized in the last of every `plan.every` steps, the first being step 0. What they are
    touched by before the first step given here is not known, so begin at a multiple of `every`.

    Args:
        plan: What is counted.
        steps: Of each step, of each rank, of each feature: its bags, as NumPy arrays or torch tensors.
        hot: Ids that are hot, for each table that has some.
        ahead: Whether the batches were asked for ahead: then masks travel as well, here with the requests.

    Raises:
        ValueError: There are other ranks or tables than the plan's, or other hot rows than it has.
        IndexError: An id is not a row of its table.

    """
    hot_ids = _hot_ids(plan, hot or {})
    pieces = plan.pieces()
    touched: dict[int, set[int]] = {}
    found: list[Traffic] = []
    for k, batches in enumerate(steps):
        num_features = sum(len(table.inputs) for table in plan.tables)
        if len(batches) != plan.num_ranks or any(len(inputs) != num_features for inputs in batches):
            raise ValueError(
                f"step {k} has {len(batches)} ranks with {sorted({len(b) for b in batches})} tables or features, but "
                f"the plan has {plan.num_ranks} with {num_features}."
            )
        flat = [_of_tables(plan, inputs, rank) for rank, inputs in enumerate(batches)]
        for index in hot_ids:
            warm = [ids[np.isin(ids, hot_ids[index])] for ids, _ in (tables[index] for tables in flat)]
            touched.setdefault(index, set()).update(np.unique(np.concatenate(warm)).tolist())
        is_due = (k + 1) % plan.every == 0
        found.append(_step(plan, pieces, flat, hot_ids, touched, is_due=is_due, ahead=ahead))
        if is_due:
            touched = {}
    return tuple(found)


def _step(
    plan: EmbeddingPlan,
    pieces: Sequence[Piece],
    flat: Sequence[Sequence[tuple[Ids, Ids]]],
    hot_ids: Mapping[int, Ids],
    touched: Mapping[int, set[int]],
    *,
    is_due: bool,
    ahead: bool,
) -> Traffic:
    n = plan.num_ranks
    counts = [_piece(plan, piece, [tables[piece.index] for tables in flat], hot_ids) for piece in pieces]
    ids, vectors, bags, lookups, warm, updated = (np.stack(each) for each in zip(*counts, strict=True))
    load = PieceLoad.of(PieceKinds.of(plan, pieces), ids, vectors, bags, lookups, warm, updated).total()
    apart = 1 - np.eye(n)
    shared = shared_by(plan, pieces)
    sizes = np.full((n, n), sizes_bytes(*group_counts(shared)), np.float64)
    requests = load.pairs[0]
    if ahead:  # from owners, a bit for each vector, in whole bytes
        requests = requests + np.ceil(asked_by_group(plan, pieces, vectors) / 8).sum(axis=0).T
    num_bytes = np.stack([sizes, requests, load.pairs[1].T, load.pairs[1]]) * apart
    on_all = [(plan.tables[index].dim, rows.size, len(touched[index])) for index, rows in hot_ids.items()]
    due = Sync.by_dim(on_all) if is_due else ()
    return Traffic(
        num_bytes=num_bytes,
        num_messages=(num_bytes > 0).astype(np.float64),
        syncs=due,
        sync_share=float(is_due),
        work=load.work(len(pieces), sum(each.dim * each.num_touched for each in due)),
        num_lookups=num_lookups(shared),
        hierarchical=plan.hierarchical,
    )


def _piece(
    plan: EmbeddingPlan, piece: Piece, of_ranks: Sequence[tuple[Ids, Ids]], hot_ids: Mapping[int, Ids]
) -> tuple[npt.NDArray[Any], ...]:
    """Return ids, vectors, bags (ranks, ranks), lookups, warm, updated (ranks,), as `PieceLoad.of` takes them."""
    n, layout = plan.num_ranks, piece.layout
    ids, vectors, bags = (np.zeros((n, n)) for _ in range(3))
    lookups, warm = np.zeros(n), np.zeros(n)
    asked = [np.zeros(0, np.int64) for _ in range(n)]
    for rank, (rows, bag_of) in enumerate(of_ranks):
        is_hot = np.isin(rows, hot_ids[piece.index]) if piece.index in hot_ids else np.zeros(rows.size, np.bool_)
        lookups[rank], warm[rank] = rows.size, int(is_hot.sum())
        cold, bag_of_cold = rows[~is_hot], bag_of[~is_hot]
        owners = _owners(cold, piece, n)
        distinct = np.unique(cold)
        asked[rank] = distinct
        if layout.moves == "sums":
            ids[rank] = np.bincount(owners, minlength=n)
            pairs = np.unique(bag_of_cold * n + owners)
            vectors[rank] = bags[rank] = np.bincount(pairs % n, minlength=n)
        else:
            travelling = owners if not layout.distinct else _owners(distinct, piece, n)
            ids[rank] = vectors[rank] = np.bincount(travelling, minlength=n)
    union = np.unique(np.concatenate(asked))
    return ids, vectors, bags, lookups, warm, np.bincount(_owners(union, piece, n), minlength=n)


def _owners(rows: Ids, piece: Piece, num_ranks: int) -> Ids:
    if piece.home is not None:
        return np.full(rows.size, piece.home, np.int64)
    return (rows + piece.index) % num_ranks


def _hot_ids(plan: EmbeddingPlan, hot: Mapping[str, Any]) -> dict[int, Ids]:
    """Return the ids on all ranks of each table that has some."""
    found: dict[int, Ids] = {}
    for index, (table, layout) in enumerate(zip(plan.tables, plan.layouts, strict=True)):
        rows = np.unique(np.asarray(hot.get(table.name, ()), np.int64))
        if layout.kind == "replicated":
            rows = np.arange(table.num_rows)
        elif rows.size != layout.num_hot:
            raise ValueError(
                f"table {table.name!r} has {layout.num_hot} hot rows in the plan, but {rows.size} different ids are "
                "given."
            )
        if rows.size:
            found[index] = rows
    return found


def _of_tables(plan: EmbeddingPlan, inputs: Sequence[Bags], rank: int) -> list[tuple[Ids, Ids]]:
    """Return for each table ids (k,) without those that pad, and the bag of each, one feature's after another's."""
    given, found = iter(inputs), list[tuple[Ids, Ids]]()
    for table in plan.tables:
        parts = [_flat(next(given), table, rank) for _ in table.inputs]
        firsts = np.cumsum([0] + [int(bag_of.max(initial=-1)) + 1 for _, bag_of in parts[:-1]])
        bag_of = np.concatenate([bag_of + first for (_, bag_of), first in zip(parts, firsts, strict=True)])
        found.append((np.concatenate([ids for ids, _ in parts]), bag_of))
    return found


def _flat(bags: Bags, table: Table, rank: int) -> tuple[Ids, Ids]:
    """Return ids (k,) without those that pad, and the bag of each."""
    if isinstance(bags, tuple):
        given = cast(tuple[Any, ...], bags)
        ids, offsets = (np.asarray(each).astype(np.int64) for each in given[:2])
        sizes = np.diff(offsets, append=ids.size)
        bag_of = np.repeat(np.arange(offsets.size), sizes)
    else:
        square = np.asarray(bags).astype(np.int64)
        ids, bag_of = square.reshape(-1), np.repeat(np.arange(square.shape[0]), square.shape[1])
    outside = ids[(ids < 0) | (ids >= table.num_rows)]
    if outside.size:
        raise IndexError(
            f"rank {rank} looks up row {outside[0]} of table {table.name!r}, which has rows 0 to {table.num_rows - 1}."
        )
    counts = np.ones(ids.size, np.bool_) if table.padding_id is None else ids != table.padding_id
    return ids[counts], bag_of[counts]
