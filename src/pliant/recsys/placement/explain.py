"""Why a placement is what it is, in words and numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pliant.layouts.embedding_messages import request_bytes, vector_bytes
from pliant.recsys.frequencies.unique import probability_seen
from pliant.recsys.placement.candidates import family
from pliant.recsys.placement.expected_traffic import ExpectedLookups, expected_lookups
from pliant.recsys.placement.local_search import alternatives
from pliant.recsys.placement.problem import EvaluatedPlan, Problem
from pliant.recsys.placement.search import Layouts, PlacementSearch
from pliant.recsys.placement.solve import solve
from pliant.spec import TableLayout
from pliant.spec.units import format_bytes, format_time

__all__ = ["Reason", "explain_placement", "reasons"]

_GIGABYTE, _GBIT = 1e9, 1.25e8


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one table got its layout."""

    name: str
    num_rows: int
    dim: int
    layout: TableLayout
    family: str
    because: str
    table_bytes: float
    """Of all its rows, with what the optimizer keeps"""
    moved_bytes: float
    """That a rank asks for and gets in a step: requests, vectors, gradients, and its part of all-reduces"""
    runner_up: str
    """The next best kind of layout; empty if no other keeps the limits"""
    runner_up_s: float
    """By how much a step would be longer with it, all else equal"""


def reasons(problem: Problem, chosen: EvaluatedPlan) -> list[Reason]:
    """Return a reason for each table of the plan chosen for a problem, in its order."""
    plan = chosen.plan
    search = PlacementSearch(problem, problem.frame(plan.batch_size, plan.every, hierarchical=plan.hierarchical))
    found = Layouts(search, plan.layouts)
    whole, table_bytes = expected_lookups(plan, plan.pieces(), problem.bins), problem.table_bytes()
    result: list[Reason] = []
    first = 0
    for t, (table, layout) in enumerate(zip(plan.tables, plan.layouts, strict=True)):
        row = found.rows[t]
        scores = {name: score for name, (_, score) in alternatives(search, found, t).items() if name != family(layout)}
        allowed = {name: score for name, score in scores.items() if score < found.score + 100}
        name = min(allowed, key=allowed.__getitem__) if allowed else ""
        result.append(
            Reason(
                name=table.name,
                num_rows=table.num_rows,
                dim=table.dim,
                layout=layout,
                family=family(layout),
                because=_because(problem, chosen, t, whole, first),
                table_bytes=table_bytes[t],
                moved_bytes=float(row[6].sum() + 2 * row[7].sum() + row[12:14, 0].sum()),
                runner_up=name,
                runner_up_s=allowed[name] - found.score if name else 0.0,
            )
        )
        first += max(1, len(layout.homes))
    return result


def _because(problem: Problem, chosen: EvaluatedPlan, t: int, whole: ExpectedLookups, piece: int) -> str:
    plan, bins = chosen.plan, problem.bins.only(np.array([t]))
    table, layout = plan.tables[t], plan.layouts[t]
    lookups = float(whole.lookups[piece])
    batch = f"{lookups:,.0f} lookups of a rank's batch"
    distinct = float((bins.rows * probability_seen(bins.p, plan.num_bags[t] * bins.pooling[:, None])).sum())
    bags = plan.num_bags[t] * float(bins.filled(np.ones((1, 1)))[0, 0])
    as_vectors = distinct * (request_bytes(1, 0, weighted=False) + 2 * vector_bytes(table.dim, layout.bits))
    as_sums = lookups * request_bytes(1, 0, weighted=table.weighted) + bags * (
        4 + 2 * vector_bytes(table.dim, layout.bits)
    )
    compared = f"{format_bytes(as_vectors)} as vectors, {format_bytes(as_sums)} pooled at a home"
    if layout.kind == "replicated":
        held = table.num_rows * 4 * (2 * table.dim + 1)
        return f"the {table.num_rows:,} rows take about {format_bytes(held)} on each rank, and no rank waits for them"
    if layout.kind in ("table", "columns"):
        evens = "; rows would move less, but homes even out what ranks do" if as_vectors < as_sums else ""
        return f"{batch} become {bags:,.0f} sums ({compared}){evens}"
    words = f"{batch} are of {distinct:,.0f} rows ({compared})"
    if layout.moves == "sums":
        words = f"{batch} become {float(whole.vectors[piece].sum()):,.0f} partial sums ({compared})"
    if layout.num_hot:
        share = float(whole.warm[piece]) / max(lookups, 1e-9)
        how = f", summed every {plan.every} steps" if plan.every > 1 else ", summed every step"
        words += f"; {layout.num_hot:,} hot rows take {share:.0%} of them{how}"
    return words


def explain_placement(
    problem: Problem, chosen: EvaluatedPlan, alike: Mapping[str, EvaluatedPlan], *, most: int = 12
) -> str:
    """Return the whole explanation; see `EmbeddingPlacement.explain`."""
    told = reasons(problem, chosen)
    lines = [_summary(problem, chosen), _times(chosen), _alike(problem, chosen, alike), ""]
    ranked = sorted(told, key=lambda each: -each.moved_bytes)
    single = ranked[:most] if len(told) > most else told
    lines += [_told(each) for each in single]
    lines += _groups(ranked[most:] if len(told) > most else [])
    lines += ["", _bought(problem, chosen)]
    return "\n".join(lines)


def _summary(problem: Problem, chosen: EvaluatedPlan) -> str:
    plan, memory, limits = chosen.plan, chosen.memory, problem.limits
    rank, total = int(memory.total.argmax()), sum(problem.table_bytes())
    stale = f"; rows on all ranks are summed every {plan.every} steps" if plan.every > 1 else ""
    by_host = ", inside hosts first" if plan.hierarchical else ""
    return (
        f"{chosen.samples_per_s:,.0f} samples/s: {plan.num_ranks} ranks, {plan.batch_size} samples each, a step of "
        f"{format_time(chosen.cost.total_s)}{stale}{by_host}.\n"
        f"{len(plan.tables)} tables of {sum(t.num_rows for t in plan.tables):,} rows take {format_bytes(total)} with "
        f"{plan.optimizer}. Rank {rank} holds most, {format_bytes(float(memory.total[rank]))} of "
        f"{format_bytes(limits.memory_bytes)}: rows {format_bytes(float(memory.shards[rank]))}, replicas "
        f"{format_bytes(float(memory.replicas[rank]))}, messages {format_bytes(float(memory.messages[rank]))}. "
        f"A rank sends up to {format_bytes(float(chosen.sent_bytes.max()))} in a step."
    )


def _times(chosen: EvaluatedPlan) -> str:
    cost = chosen.cost
    parts = sorted(((s, name) for name, s in cost.parts_s if s > 0.005 * cost.total_s), reverse=True)
    said = ", ".join(f"{name} {format_time(s)} ({s / cost.total_s:.0%})" for s, name in parts)
    hidden = f"; {format_time(cost.hidden_s)} of it beside the dense part" if cost.hidden_s > 0 else ""
    return f"Where the time goes: {said}{hidden}. Links and delays: {cost.wire_s / cost.total_s:.0%}."


def _alike(problem: Problem, chosen: EvaluatedPlan, alike: Mapping[str, EvaluatedPlan]) -> str:
    said: list[str] = []
    for name, each in alike.items():
        if each.excess(problem.limits) > 0:
            said.append(f"{name}: beyond the limits")
        else:
            said.append(f"{name}: {chosen.samples_per_s / each.samples_per_s:.2f} times slower")
    return f"Against the same layout for every table: {'; '.join(said)}."


def _told(reason: Reason) -> str:
    layout = reason.layout
    where = f" (rank {', '.join(map(str, layout.homes))})" if layout.homes else ""
    bits = f", {layout.bits} bits" if layout.bits < 32 else ""
    other = (
        f" Next best: {reason.runner_up}, a step {format_time(abs(reason.runner_up_s))} "
        f"{'longer' if reason.runner_up_s >= 0 else 'shorter by the faster model'}."
        if reason.runner_up
        else " Nothing else keeps the limits."
    )
    what = f"{reason.name}, {reason.num_rows:,} x {reason.dim}: {reason.family}{where}{bits}"
    return f"{what}, since {reason.because}.{other}"


def _groups(rest: Sequence[Reason]) -> list[str]:
    """Return a line for each family of the tables that are not told one by one."""
    lines: list[str] = []
    for name, members in groupby(sorted(rest, key=lambda each: each.family), key=lambda each: each.family):
        those = list(members)
        rows = [each.num_rows for each in those]
        hot = sum(each.layout.num_hot for each in those)
        lines.append(
            f"{len(those)} more tables of {min(rows):,} to {max(rows):,} rows, "
            f"{format_bytes(sum(each.table_bytes for each in those))}: {name}"
            + (f", {hot:,} hot rows in all" if hot else "")
            + f"; they move {format_bytes(sum(each.moved_bytes for each in those))} of a rank's bytes in a step."
        )
    return lines


def _bought(problem: Problem, chosen: EvaluatedPlan) -> str:
    def gain(more: Problem) -> float:
        return solve(more, known=[chosen.plan])[0].samples_per_s / chosen.samples_per_s - 1

    said = f"One more GB on every rank would buy {gain(problem.given_more(memory_bytes=_GIGABYTE)):.2%} of throughput"
    hosts = problem.topology.hosts
    if any(host.send_bytes_per_s > 0 or host.receive_bytes_per_s > 0 for host in hosts) and len(hosts) > 1:
        return f"{said}, one more Gbit/s for every host {gain(problem.given_more(bytes_per_s=_GBIT)):.1%}."
    return f"{said}; the rate of links is not limited."
