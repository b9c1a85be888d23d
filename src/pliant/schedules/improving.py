"""Integer programs that improve the best schedule of the family, within a time limit."""

from pliant.netmodel import Overheads
from pliant.schedules.choose import Candidate, candidates
from pliant.schedules.collective import Collective, group
from pliant.schedules.cost import cost
from pliant.schedules.family import build
from pliant.schedules.owners import program_owners
from pliant.schedules.program import improve, too_large
from pliant.spec import Topology

__all__ = ["better_owners", "better_rounds"]

_PIECES_PER_RANK = 2
"""So few super-blocks per rank that a program with all rounds stays small."""


def better_owners(
    best: Candidate, topology: Topology, overheads: Overheads | None = None, *, limit_s: float
) -> Candidate:
    """Return the candidate with owners by `program_owners`, or itself if that is not predicted to be faster.

    Raises:
        RuntimeError: SciPy is not installed.

    """
    overheads = overheads if overheads is not None else Overheads()
    if best.recipe is None or best.recipe.owners == "one":
        return best
    collective, merged = best.grouped.collective, best.recipe.owners == "merged"
    owners = program_owners(collective, topology, overheads, merged=merged, limit_s=limit_s).owners
    schedule = build(collective, owners, best.recipe.shape)
    predicted = cost(schedule, collective, topology, overheads)
    if predicted.total_s >= best.cost.total_s:
        return best
    name = f"{best.recipe.shape.name} (program)"
    return Candidate(name=name, grouped=best.grouped, schedule=schedule, cost=predicted)


def better_rounds(
    best: Candidate,
    collective: Collective,
    topology: Topology,
    overheads: Overheads | None = None,
    *,
    limit_s: float,
    num_workers: int = 1,
) -> Candidate:
    """Return what `improve` makes of the family over few super-blocks, or the best itself if that is not faster.

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
    overheads = overheads if overheads is not None else Overheads()
    coarse = group(collective, _PIECES_PER_RANK * collective.num_ranks)
    tried = candidates(coarse, topology, overheads)
    start = next((each for each in tried if not too_large(each.schedule)), tried[0])
    found = improve(start.schedule, coarse.collective, topology, overheads, limit_s=limit_s, num_workers=num_workers)
    predicted = cost(found.schedule, coarse.collective, topology, overheads)
    if predicted.total_s >= best.cost.total_s:
        return best
    same = found.schedule == start.schedule
    name = f"{start.name} (super-blocks)" if same else found.schedule.name
    return Candidate(name=name, grouped=coarse, schedule=found.schedule, cost=predicted)
