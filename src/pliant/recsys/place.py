"""Which layout each table should have: most throughput within limits of memory, work, communication, staleness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pliant.netmodel import Links
from pliant.recsys.bins import RowBins
from pliant.recsys.curves import Weights
from pliant.recsys.moving import Model
from pliant.recsys.problem import Limits, Problem, Valued, refusal
from pliant.recsys.program import best_of_all
from pliant.recsys.rates import Rates
from pliant.recsys.rows import Frequencies
from pliant.recsys.search import Found, PlacementSearch
from pliant.spec import EmbeddingPlan, Table, TableLayout, Topology
from pliant.spec.embedding import RowOptimizer

if TYPE_CHECKING:
    from pliant.recsys.explain import Reason

__all__ = ["EmbeddingPlacement", "place", "search_of", "solve"]

_FEW = 40
"""Tables up to which every batch size and staleness gets a local search of its own."""
_SAME = 1e-3
"""Relative difference of steps that does not excuse staler gradients."""


@dataclass(frozen=True, eq=False)
class EmbeddingPlacement(Valued):
    """The best plan that was found. `explain()` says why."""

    problem: Problem = field(repr=False)
    alike: Mapping[str, Valued] = field(repr=False)
    """Plans whose tables are all laid out in the same way, at the same batch size; also such as exceed a limit"""
    others: tuple[tuple[int, float], ...]
    """Batch sizes that were tried, and samples per second; infinitely few where nothing fits"""

    def reasons(self) -> "list[Reason]":
        """Return for each table why it got its layout."""
        from pliant.recsys.explain import reasons  # here, since it explains placements and needs this file

        return reasons(self)

    def explain(self, *, most: int = 12) -> str:
        """Return in words and numbers why each table got its layout, and what more memory or rate would buy.

        Args:
            most: Tables that are told one by one; the others are told in groups.

        """
        from pliant.recsys.explain import explained  # as above

        return explained(self, most=most)

    def given_more(self, *, memory_bytes: float = 0.0, bytes_per_s: float = 0.0) -> "EmbeddingPlacement":
        """Return the placement with so much more memory on every rank, and rate of every host, both ways."""
        problem = self.problem
        hosts = tuple(
            replace(
                host,
                send_bytes_per_s=host.send_bytes_per_s + bytes_per_s * (host.send_bytes_per_s > 0),
                receive_bytes_per_s=host.receive_bytes_per_s + bytes_per_s * (host.receive_bytes_per_s > 0),
            )
            for host in problem.topology.hosts
        )
        limits = replace(problem.limits, memory_bytes=problem.limits.memory_bytes + memory_bytes)
        more = replace(problem, topology=replace(problem.topology, hosts=hosts), limits=limits)
        return solve(more, known=[self.plan])

    def curve(self, memory_bytes: Sequence[float]) -> list[tuple[float, float | None]]:
        """Return throughput for limits of memory, in rising order; None where nothing fits."""
        known: list[EmbeddingPlan] = []
        found: list[tuple[float, float | None]] = []
        for limit in sorted(memory_bytes):
            problem = replace(self.problem, limits=replace(self.problem.limits, memory_bytes=limit))
            try:
                best = solve(problem, known=[*known, self.plan])
            except ValueError:
                found.append((limit, None))
                continue
            known = [best.plan]
            found.append((limit, best.samples_per_s))
        return found


def place(
    tables: Sequence[Table],
    frequencies: Frequencies,
    topology: Topology,
    limits: Limits,
    *,
    batch_sizes: Sequence[int] = (1024,),
    optimizer: RowOptimizer = "rowwise_adagrad",
    rates: Rates | None = None,
    dense_sample_s: float = 0.0,
    overlap: bool = False,
    exact: bool = False,
) -> EmbeddingPlacement:
    """Choose the layout of each table, rows on all ranks, how often those are summed, homes, bits and the batch size.

    Args:
        tables: Of the model.
        frequencies: Of their rows, in the same order.
        topology: Ranks, hosts and links.
        limits: What must be kept.
        batch_sizes: Samples on each rank, to choose from.
        optimizer: Of the rows; it needs memory, too.
        rates: Of the machine; defaults are those of a CPU core.
        dense_sample_s: Seconds for each sample of everything else in a step.
        overlap: Whether the next batch is known early, so that asking for it hides beside the dense part.
        exact: Also solve an integer program over the layouts that come into question; for few tables. Needs SciPy.

    Raises:
        ValueError: Nothing fits the limits, or frequencies are of other tables, or there is no batch size.

    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ValueError(f"batch sizes are {list(batch_sizes)}; give at least one, of at least one sample.")
    problem = Problem(
        tables=tuple(tables),
        bins=RowBins.of(tables, frequencies),
        topology=topology,
        limits=limits,
        batch_sizes=tuple(batch_sizes),
        optimizer=optimizer,
        rates=rates if rates is not None else Rates(),
        dense_sample_s=dense_sample_s,
        overlap=overlap,
    )
    return solve(problem, exact=exact)


def solve(problem: Problem, *, known: Sequence[EmbeddingPlan] = (), exact: bool = False) -> EmbeddingPlacement:
    """Choose a placement; `known` plans of the same tables are begun with as well, so the result is never worse."""
    limits = problem.limits
    searched = [
        (search, search.starts(_weights(limits)))
        for batch in problem.batch_sizes
        for every in sorted({1, limits.max_staleness + 1})
        for by_host in ((False, True) if _is_shared(problem) else (False,))
        for search in [search_of(problem, batch, every, by_host=by_host)]
    ]

    def speed(item: tuple[PlacementSearch, list[Found]]) -> float:
        return item[0].frame.batch_size / item[1][0].score

    searched.sort(key=speed, reverse=True)
    plans = [plan for plan in known if plan.every <= limits.max_staleness + 1]
    is_few = len(problem.tables) <= _FEW
    for k, (search, starts) in enumerate(searched):
        layouts = [start.layouts for start in (starts if is_few else starts[:2])]
        if k == 0 or is_few:
            begun = starts[: 2 if is_few else 1]
            for start in begun:
                search.improve(start, Weights())
            best = search.kick(min(starts, key=lambda each: each.score), Weights())
            layouts += [start.layouts for start in [*begun, best]]
            if exact:
                layouts.append(best_of_all(search, best))
        plans += [replace(search.frame, layouts=tuple(each)) for each in layouts]
    valued = [Valued.of(plan, problem) for plan in dict.fromkeys(plans)]
    fits = [each for each in valued if each.excess(limits) == 0]
    if not fits:
        raise ValueError(refusal(min(valued, key=lambda each: each.excess(limits)), problem))
    best = max(fits, key=lambda each: each.samples_per_s)
    best = _settled(best, problem)
    return _placement(best, problem, fits)


def _placement(best: Valued, problem: Problem, fits: Sequence[Valued]) -> EmbeddingPlacement:
    search = search_of(problem, best.plan.batch_size, 1)
    menu = search.menu(Weights())
    alike = {
        name: Valued.of(replace(search.frame, layouts=tuple(search.at_homes(layouts, menu))), problem)
        for name, layouts in search.uniform().items()
    }
    speeds = [
        (batch, max((each.samples_per_s for each in fits if each.plan.batch_size == batch), default=0.0))
        for batch in problem.batch_sizes
    ]
    return EmbeddingPlacement(
        best.plan, best.traffic, best.cost, best.memory, best.sent_bytes, problem, alike, tuple(speeds)
    )


def _settled(best: Valued, problem: Problem) -> Valued:
    """Return the plan with the least staleness that is as fast, and with sums by hosts if those are faster."""
    plan = best.plan
    if not any(layout.num_hot or layout.kind == "replicated" for layout in plan.layouts):
        return Valued.of(replace(plan, every=1, hierarchical=False), problem)
    most = problem.limits.max_staleness + 1
    counts = sorted({1, most, plan.every, *(2**k for k in range(1, most.bit_length()) if 2**k <= most)})
    tried = [
        Valued.of(replace(plan, every=every, hierarchical=by_host), problem)
        for every in counts
        for by_host in ((False, True) if _is_shared(problem) else (False,))
    ]
    tried = [each for each in tried if each.excess(problem.limits) == 0]
    least = min([best, *tried], key=lambda each: each.cost.total_s).cost.total_s
    return next(each for each in [*tried, best] if each.cost.total_s <= least * (1 + _SAME))


def _is_shared(problem: Problem) -> bool:
    """Return whether hosts have ranks of their own to sum over before they talk to each other."""
    hosts = problem.topology.hosts
    return len(hosts) > 1 and any(host.num_ranks > 1 for host in hosts)


def search_of(problem: Problem, batch: int, every: int, *, by_host: bool = False) -> PlacementSearch:
    """Return a search for one batch size and one `every`."""
    frame = EmbeddingPlan(
        tables=problem.tables,
        layouts=(TableLayout(kind="rows"),) * len(problem.tables),
        num_ranks=problem.topology.num_ranks,
        batch_size=batch,
        every=every,
        optimizer=problem.optimizer,
        hierarchical=by_host,
    )
    links = Links(problem.topology, problem.rates.overheads)
    limits = problem.limits
    model = Model(
        links,
        problem.rates,
        every=every,
        hierarchical=by_host,
        dense_s=problem.dense_sample_s * batch,
        overlap=problem.overlap,
        memory_bytes=limits.memory_bytes,
        sent_bytes=limits.sent_bytes,
        work_s=limits.work_s,
    )
    return PlacementSearch(frame, problem.bins, links, problem.rates, model, limits.bits)


def _weights(limits: Limits) -> list[Weights]:
    """Return what seconds count: more of what is limited, which tables chosen one by one do not see."""
    found = [Weights()]
    if limits.sent_bytes is not None:
        found += [Weights(wire=w) for w in (4.0, 16.0, 64.0)]
    if limits.work_s is not None:
        found += [Weights(work=w) for w in (4.0, 16.0, 64.0)]
    return found
