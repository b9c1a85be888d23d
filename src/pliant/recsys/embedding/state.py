"""Saved state of the tables on a rank: independent of the plan and of the number of ranks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pliant.comm.agreement import require_same, telling_of_failure
from pliant.comm.base import Comm
from pliant.recsys.embedding.groups import PieceSpan
from pliant.recsys.embedding.initial import parts_of
from pliant.recsys.embedding.local_tables import LocalTables
from pliant.recsys.embedding.optimizers import TableRows
from pliant.spec import Table
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["checked_parts", "gather_rows", "read_rows", "saved_hot", "saved_state"]


def gather_rows(local: LocalTables, comm: Comm, tables: Sequence[Table], name: str | None) -> list[Tensor]:
    """Return all rows of a table, or of each, float32 (num_rows, dim), on every rank."""
    if name is not None and name not in {table.name for table in tables}:
        raise ValueError(f"there is no table {name!r}; tables are {', '.join(table.name for table in tables)}.")
    return [_gather_table(local, comm, t, table) for t, table in enumerate(tables) if name in (None, table.name)]


def _gather_table(local: LocalTables, comm: Comm, index: int, table: Table) -> Tensor:
    full = torch.zeros(table.num_rows, table.dim, dtype=torch.float32, device=local.device)
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


def checked_parts(
    state: Mapping[str, Any], local: LocalTables, plan: EmbeddingPlan, comm: Comm
) -> list[Mapping[str, Any]]:
    """Return the parts of all ranks that saved a state, in their order. Collective; nothing changes yet.

    Raises:
        ValueError: Some rank was given a state of other tables or another optimizer, without all parts or rows, or not
            the state that others were given: on all ranks.

    """
    what, device = "the state to load", local.device
    with telling_of_failure(comm, what, device):
        parts = _parts_of_ranks(state)
        _require_rows(local, plan, [part["tables"] for part in parts])
        counters = str(parts[0]["counters"].tolist())
    require_same(comm, what, counters, device, cure="give every rank the parts of one state")
    return parts


def _parts_of_ranks(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "rank0" not in state:
        raise ValueError(
            f"the state holds {', '.join(state) or 'nothing'}; it needs the parts of all ranks, also rank0."
        )
    num_ranks = int(state["rank0"]["counters"][1])
    absent = [f"rank{rank}" for rank in range(num_ranks) if f"rank{rank}" not in state]
    if absent:
        raise ValueError(f"the state was saved by {num_ranks} ranks, but it lacks {', '.join(absent)}.")
    return [state[f"rank{rank}"] for rank in range(num_ranks)]


def _require_rows(local: LocalTables, plan: EmbeddingPlan, parts: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError unless parts have this plan's tables, and all of this rank's rows with what is kept of them."""
    names = [table.name for table in plan.tables]
    for part in parts:
        if set(part) != set(names):
            raise ValueError(f"the state has tables {', '.join(part)}, but the plan has {', '.join(names)}.")
    lacking: list[str] = []
    for rows, span in _places(local):
        name, left = names[span.piece.index], span.num * span.piece.dim
        kept = {f"element{k}" for k in range(len(rows.elements))} | {f"number{m}" for m in range(len(rows.numbers))}
        for saved in _saved_of(name, parts):
            if set(saved) != {"rows", "weights", *kept}:
                raise ValueError(
                    f"the state of table {name!r} was saved by another optimizer of rows than this plan's."
                )
            low, high = _columns(saved, span)
            left -= max(0, high - low) * sum(len(at) for _, at in _rows(saved, span, local.device))
        if left:
            lacking.append(name)
    if lacking:
        named = ", ".join(sorted(set(lacking)))
        raise ValueError(f"the state lacks rows of {named}; load the parts of all ranks, each once.")


def read_rows(local: LocalTables, tables: Sequence[Table], parts: Sequence[Mapping[str, Any]]) -> None:
    """Take this rank's rows out of what all ranks have saved, as `checked_parts` returns it, one part at a time.

    Where a table is cut by other columns than before, a number that belongs to a row becomes the mean over its columns.
    """
    for rows, span in _places(local):
        numbers = rows.numbers.new_zeros(len(rows.numbers), span.num)  # a saved tensor may be the live one
        for saved in _saved_of(tables[span.piece.index].name, [part["tables"] for part in parts]):
            _copy(saved, rows, span, numbers)
        rows.numbers[:, span.slot : span.slot + span.num] = numbers


def _copy(saved: Mapping[str, Tensor], rows: TableRows, span: PieceSpan, numbers: Tensor) -> None:
    """Copy what a saved piece and a span have in common, and add its share of numbers of rows, (m, span.num)."""
    low, high = _columns(saved, span)
    if high <= low:
        return
    first, device = int(saved["rows"][3]), rows.weights.device
    there = slice(low - first, high - first)
    here = slice(low - span.piece.first_column, high - span.piece.first_column)
    for place, at in _rows(saved, span, saved["weights"].device):
        mine = place.to(device)
        rows.weights[span.slot + mine, here] = saved["weights"][at, there].to(device)
        for k in range(len(rows.elements)):
            rows.elements[k, span.slot + mine, here] = saved[f"element{k}"][at, there].to(device)
        for m in range(len(rows.numbers)):
            numbers[m, mine] += saved[f"number{m}"][at].to(device) * ((high - low) / span.piece.dim)


def _saved_of(name: str, parts: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Tensor]]:
    """Return the saved pieces of a table."""
    for part in parts:
        yield from part[name].values()


def _columns(saved: Mapping[str, Tensor], span: PieceSpan) -> tuple[int, int]:
    """Return the columns that a saved piece and a span have in common; none if the second is not above the first."""
    first = int(saved["rows"][3])
    low = max(first, span.piece.first_column)
    return low, min(first + saved["weights"].shape[1], span.piece.first_column + span.piece.dim)


def _rows(saved: Mapping[str, Tensor], span: PieceSpan, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Return places, int64 (num,), in a span and in a saved piece of the rows that both have, a part at a time."""
    first, stride, num, _ = saved["rows"].tolist()
    for part in parts_of(num):
        at = torch.arange(part.start, part.stop, device=device)
        away = first + stride * at - span.first
        mine = (away >= 0) & (away % span.stride == 0) & (away // span.stride < span.num)
        yield away[mine] // span.stride, at[mine]
