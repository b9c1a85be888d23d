"""Integer programs that improve the best schedule of the family, within a time limit."""

from pliant.netmodel import Overheads, overheads_of
from pliant.schedules.collective import Collective, merge_blocks
from pliant.schedules.cost import predict_cost
from pliant.schedules.family import build_schedule
from pliant.schedules.owners import solve_owners
from pliant.schedules.program import solve_rounds, too_large
from pliant.schedules.select import Candidate, candidates
from pliant.spec import Topology

__all__ = ["improve_owners", "improve_rounds"]

_PIECES_PER_RANK = 2
"""So few super-blocks per rank that a program with all rounds stays small."""


def improve_owners(
    best: Candidate, topology: Topology, overheads: Overheads | None = None, *, limit_s: float
) -> Candidate:
    """Return the candidate with owners by `solve_owners`, or itself if that is not predicted to be faster."""
    overheads = overheads if overheads is not None else overheads_of(topology)
    if best.rule is None or best.rule.owners == "one":
        return best
    collective, merged = best.merged.collective, best.rule.owners == "merged"
    owners = solve_owners(collective, topology, overheads, merged=merged, limit_s=limit_s).owners
    schedule = build_schedule(collective, owners, best.rule.shape)
    predicted = predict_cost(schedule, collective, topology, overheads)
    if predicted.total_s >= best.cost.total_s:
        return best
    name = f"{best.rule.shape.name} (program)"
    return Candidate(name=name, merged=best.merged, schedule=schedule, cost=predicted)


def improve_rounds(
    best: Candidate,
    collective: Collective,
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    limit_s: float,
    num_workers: int = 1,
) -> Candidate:
    """Return what `solve_rounds` makes of the family over few super-blocks, or the best itself if that is not faster.

    Args:
        best: Of the family, over any super-blocks.
        collective: Of single blocks.
        topology: Whose links count.
        overheads: Overheads beside them.
        limit_s: Of the solver.
        num_workers: Threads of the solver.

    Raises:
        RuntimeError: OR-Tools is not installed.
        ValueError: Even over few super-blocks there are too many blocks, ranks and rounds.

    """
    overheads = overheads if overheads is not None else overheads_of(topology)
    coarse = merge_blocks(collective, _PIECES_PER_RANK * collective.num_ranks)
    tried = candidates(coarse, topology, overheads)
    start = next((each for each in tried if not too_large(each.schedule)), tried[0])
    found = solve_rounds(
        start.schedule, coarse.collective, topology, overheads, limit_s=limit_s, num_workers=num_workers
    )
    predicted = predict_cost(found.schedule, coarse.collective, topology, overheads)
    if predicted.total_s >= best.cost.total_s:
        return best
    same = found.schedule == start.schedule
    name = f"{start.name} (super-blocks)" if same else found.schedule.name
    return Candidate(name=name, merged=coarse, schedule=found.schedule, cost=predicted)
