"""Saved state of the tables on a rank: independent of the plan and of the number of ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pliant.comm.base import Comm
from pliant.recsys.embedding.groups import PieceSpan
from pliant.recsys.embedding.initial import parts_of
from pliant.recsys.embedding.local_tables import LocalTables
from pliant.recsys.embedding.optimizers import TableRows
from pliant.spec import Table
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["gather_rows", "parts_of_ranks", "read_rows", "saved_hot", "saved_state"]


def gather_rows(local: LocalTables, comm: Comm, tables: Sequence[Table], name: str | None) -> list[Tensor]:
    """Return all rows of a table, or of each, float32 (num_rows, dim), on every rank."""
    if name is not None and name not in {table.name for table in tables}:
        raise ValueError(f"there is no table {name!r}; tables are {', '.join(table.name for table in tables)}.")
    return [_gather_table(local, comm, t, table) for t, table in enumerate(tables) if name in (None, table.name)]


def _gather_table(local: LocalTables, comm: Comm, index: int, table: Table) -> Tensor:
    full = torch.zeros(table.num_rows, table.dim, device=local.device)
    for rows, span in _places(local):
        if span.piece.index == index and (span.piece.layout.kind != "replicated" or comm.rank == 0):
            piece = span.piece
            columns = slice(piece.first_column, piece.first_column + piece.dim)
            full[span.rows(full.device), columns] = rows.weights[span.slot : span.slot + span.num]
    if comm.size > 1:
        comm.all_reduce(full).wait()  # each row is zero on all ranks but one
    return full


def _places(local: LocalTables) -> list[tuple[TableRows, PieceSpan]]:
    """Return all that a rank owns or has alike with all others; hot rows are with their owners."""
    found = [(shard.rows, span) for shard in local.shards for span in shard.spans]
    for replicas in local.replicas.values():
        found += [(replicas.rows, span) for span in replicas.spans if span.piece.layout.kind == "replicated"]
    return found


def saved_state(
    local: LocalTables, tables: Sequence[Table], comm: Comm, num_steps: int, hot: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return {'rank<i>': {...}} with the steps made, the hot rows by table, and the rows of this rank."""
    counters = torch.tensor([num_steps, comm.size])
    rows = _saved_rows(local, tables, comm.rank, comm.size)
    return {f"rank{comm.rank}": {"counters": counters, "tables": rows, "hot": dict(hot)}}


def saved_hot(parts: Sequence[Mapping[str, Any]], plan: EmbeddingPlan) -> dict[str, Tensor]:
    """Return the hot rows of a state by table, where the plan's layout has room for all of a table."""
    room = {table.name: layout.num_hot for table, layout in zip(plan.tables, plan.layouts, strict=True)}
    return {name: ids for name, ids in parts[0]["hot"].items() if 0 < len(ids) <= room.get(name, 0)}


def _saved_rows(local: LocalTables, tables: Sequence[Table], rank: int, num_ranks: int) -> dict[str, Any]:
    """Return {table: {first column: {...}}} of tensors: rows that this rank owns, and its part of replicated tables.

    'rows' is (first, stride, num, first column), 'weights' (num, dim), 'element0', … (num, dim) and 'number0', … (num,)
    are what the optimizer keeps. They are the live tensors, but for replicated tables, whose parts are copies.
    """
    found: dict[str, Any] = {table.name: {} for table in tables}
    for rows, span in _places(local):
        part, first, num = slice(span.slot, span.slot + span.num), span.first, span.num
        if span.piece.layout.kind == "replicated":
            low, high = span.num * rank // num_ranks, span.num * (rank + 1) // num_ranks
            part, first, num = slice(span.slot + low, span.slot + high), low, high - low
        if not num:
            continue
        kept = {"weights": rows.weights[part]}
        kept |= {f"element{k}": rows.elements[k, part] for k in range(len(rows.elements))}
        kept |= {f"number{m}": rows.numbers[m, part] for m in range(len(rows.numbers))}
        if span.piece.layout.kind == "replicated":
            kept = {name: tensor.clone() for name, tensor in kept.items()}
        column = span.piece.first_column
        where = torch.tensor([first, span.stride, num, column])
        found[tables[span.piece.index].name][str(column)] = {"rows": where, **kept}
    return found


def read_rows(local: LocalTables, plan: EmbeddingPlan, parts: Iterable[Mapping[str, Any]]) -> None:
    """Take this rank's rows out of what all ranks have saved, one part at a time.

    Where a table is cut by other columns than before, a number that belongs to a row becomes the mean over its columns.

    Raises:
        ValueError: Tables or optimizers differ, or rows are missing.

    """
    index = {table.name: t for t, table in enumerate(plan.tables)}
    places: dict[int, list[tuple[TableRows, PieceSpan]]] = {}
    for rows, span in _places(local):
        rows.numbers[:, span.slot : span.slot + span.num] = 0.0
        places.setdefault(span.piece.index, []).append((rows, span))
    missing = {(t, k): s.num * s.piece.dim for t, its in places.items() for k, (_, s) in enumerate(its)}
    for part in parts:
        unknown = [name for name in part if name not in index]
        if unknown or len(part) != len(index):
            raise ValueError(f"the state has tables {', '.join(part)}, but the plan has {', '.join(index)}.")
        for name, pieces in part.items():
            for saved in pieces.values():
                for k, (rows, span) in enumerate(places.get(index[name], [])):
                    missing[index[name], k] -= _copied(saved, rows, span, name)
    lacking = sorted({plan.tables[t].name for (t, _), left in missing.items() if left})
    if lacking:
        raise ValueError(f"the state lacks rows of {', '.join(lacking)}; load the parts of all ranks, each once.")


def _copied(saved: Mapping[str, Tensor], rows: TableRows, span: PieceSpan, name: str) -> int:
    """Copy what a saved piece and a span have in common; return how many numbers of weights that were."""
    kept = {f"element{k}" for k in range(len(rows.elements))} | {f"number{m}" for m in range(len(rows.numbers))}
    if set(saved) != {"rows", "weights", *kept}:
        raise ValueError(f"the state of table {name!r} was saved by another optimizer of rows than this plan's.")
    first, stride, num, column = saved["rows"].tolist()
    low = max(column, span.piece.first_column)
    high = min(column + saved["weights"].shape[1], span.piece.first_column + span.piece.dim)
    if high <= low:
        return 0
    there, here = (
        slice(low - column, high - column),
        slice(low - span.piece.first_column, high - span.piece.first_column),
    )
    share, copied, device = (high - low) / span.piece.dim, 0, rows.weights.device
    for part in parts_of(num):
        at = torch.arange(part.start, part.stop, device=device)
        away = first + stride * at - span.first
        mine = (away >= 0) & (away % span.stride == 0) & (away // span.stride < span.num)
        slots, at = span.slot + away[mine] // span.stride, at[mine]
        rows.weights[slots, here] = saved["weights"].to(device)[at, there]
        for k in range(len(rows.elements)):
            rows.elements[k, slots, here] = saved[f"element{k}"].to(device)[at, there]
        for m in range(len(rows.numbers)):
            rows.numbers[m, slots] += share * saved[f"number{m}"].to(device)[at]
        copied += len(at) * (high - low)
    return copied


def parts_of_ranks(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of all ranks that saved a state, in their order. Raises ValueError if some are missing."""
    if "rank0" not in state:
        raise ValueError(
            f"the state holds {', '.join(state) or 'nothing'}; it needs the parts of all ranks, also rank0."
        )
    num_ranks = int(state["rank0"]["counters"][1])
    absent = [f"rank{rank}" for rank in range(num_ranks) if f"rank{rank}" not in state]
    if absent:
        raise ValueError(f"the state was saved by {num_ranks} ranks, but it lacks {', '.join(absent)}.")
    return [state[f"rank{rank}"] for rank in range(num_ranks)]
