"""Placement of embedding tables: most throughput within limits of memory, work, communication and staleness."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pliant.recsys.frequencies.bins import RowBins
from pliant.recsys.frequencies.rows import Frequencies
from pliant.recsys.placement.explain import Reason, explain_placement, reasons
from pliant.recsys.placement.problem import EvaluatedPlan, PlacementLimits, Problem
from pliant.recsys.placement.rates import Rates
from pliant.recsys.placement.search import PlacementSearch
from pliant.recsys.placement.solve import solve
from pliant.spec import EmbeddingPlan, Table, Topology
from pliant.spec.embedding import RowOptimizer

__all__ = ["EmbeddingPlacement", "place_tables"]


@dataclass(frozen=True, eq=False, kw_only=True)
class EmbeddingPlacement:
    """The best plan that was found. `explain()` says why."""

    problem: Problem = field(repr=False)
    chosen: EvaluatedPlan
    """The plan, and what the cost framework says of it"""
    alike: Mapping[str, EvaluatedPlan] = field(repr=False)
    """Plans whose tables are all laid out in the same way, at the same batch size; also such as exceed a limit"""
    others: tuple[tuple[int, float], ...]
    """Batch sizes that were tried, and samples per second; infinitely few where nothing fits"""

    @classmethod
    def of(cls, problem: Problem, *, known: Sequence[EmbeddingPlan] = (), exact: bool = False) -> "EmbeddingPlacement":
        """Solve a problem; see `solve`."""
        best, *fits = solve(problem, known=known, exact=exact)
        search = PlacementSearch(problem, problem.frame(best.plan.batch_size))
        alike = {
            name: EvaluatedPlan.of(replace(search.frame, layouts=tuple(search.at_homes(layouts))), problem)
            for name, layouts in search.uniform().items()
        }
        speeds = [
            (batch, max((each.samples_per_s for each in fits if each.plan.batch_size == batch), default=0.0))
            for batch in problem.batch_sizes
        ]
        return cls(problem=problem, chosen=best, alike=alike, others=tuple(speeds))

    @property
    def plan(self) -> EmbeddingPlan:
        """Layouts of all tables, and the batch size."""
        return self.chosen.plan

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks in a second."""
        return self.chosen.samples_per_s

    def reasons(self) -> list[Reason]:
        """Return for each table why it got its layout."""
        return reasons(self.problem, self.chosen)

    def explain(self, *, most: int = 12) -> str:
        """Return in words and numbers why each table got its layout, and what more memory or rate would buy.

        Args:
            most: Tables that are told one by one; the others are told in groups.

        """
        return explain_placement(self.problem, self.chosen, self.alike, most=most)

    def given_more(self, *, memory_bytes: float = 0.0, bytes_per_s: float = 0.0) -> "EmbeddingPlacement":
        """Return the placement with so much more memory on every rank, and rate of every host, both ways."""
        more = self.problem.given_more(memory_bytes=memory_bytes, bytes_per_s=bytes_per_s)
        return EmbeddingPlacement.of(more, known=[self.plan])

    def curve(self, memory_bytes: Sequence[float]) -> list[tuple[float, float | None]]:
        """Return throughput for limits of memory, in rising order; None where nothing fits."""
        known = [self.plan]
        found: list[tuple[float, float | None]] = []
        for limit in sorted(memory_bytes):
            problem = replace(self.problem, limits=replace(self.problem.limits, memory_bytes=limit))
            try:
                best = solve(problem, known=known)[0]
            except ValueError:
                found.append((limit, None))
                continue
            known = [best.plan, self.plan]
            found.append((limit, best.samples_per_s))
        return found


def place_tables(
    tables: Sequence[Table],
    frequencies: Frequencies,
    topology: Topology,
    limits: PlacementLimits,
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
        exact: Also solve an integer program over the layouts that come into question; for few tables.

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
    return EmbeddingPlacement.of(problem, exact=exact)
