"""Solution of a placement problem: a search for each batch size and staleness, and the best plan within the limits."""

from collections.abc import Sequence
from dataclasses import replace

from pliant.recsys.placement.curves import ResourcePrices
from pliant.recsys.placement.local_search import improve, perturb
from pliant.recsys.placement.milp import solve_milp
from pliant.recsys.placement.problem import EvaluatedPlan, PlacementLimits, Problem, infeasibility
from pliant.recsys.placement.search import Layouts, PlacementSearch
from pliant.spec import EmbeddingPlan

__all__ = ["solve"]

_FEW = 40
"""Tables up to which every batch size and staleness gets a local search of its own."""
_SAME = 1e-3
"""Relative difference of steps that does not excuse staler gradients."""


def solve(problem: Problem, *, known: Sequence[EmbeddingPlan] = (), exact: bool = False) -> list[EvaluatedPlan]:
    """Return the chosen plan, and after it all others that keep the limits.

    Args:
        problem: What is to be placed.
        known: Plans of the same tables that are begun with as well, so that the result is never worse.
        exact: Whether an integer program is solved, too.

    Raises:
        ValueError: Nothing fits the limits.

    """
    limits = problem.limits
    searched = [
        (search, search.starts(_prices(limits)))
        for batch in problem.batch_sizes
        for every in sorted({1, limits.max_staleness + 1})
        for by_host in sorted({False, problem.has_shared_hosts})
        for search in [PlacementSearch(problem, problem.frame(batch, every, hierarchical=by_host))]
    ]

    def speed(item: tuple[PlacementSearch, list[Layouts]]) -> float:
        return item[0].frame.batch_size / item[1][0].score

    searched.sort(key=speed, reverse=True)
    plans = [plan for plan in known if plan.every <= limits.max_staleness + 1]
    is_few = len(problem.tables) <= _FEW
    for k, (search, starts) in enumerate(searched):
        layouts = [start.layouts for start in (starts if is_few else starts[:2])]
        if k == 0 or is_few:
            begun = starts[: 2 if is_few else 1]
            for start in begun:
                improve(search, start)
            best = perturb(search, min(starts, key=lambda each: each.score))
            layouts += [start.layouts for start in [*begun, best]]
            if exact:
                layouts.append(solve_milp(search, best))
        plans += [replace(search.frame, layouts=tuple(each)) for each in layouts]
    valued = [EvaluatedPlan.of(plan, problem) for plan in dict.fromkeys(plans)]
    fits = [each for each in valued if each.excess(limits) == 0]
    if not fits:
        raise ValueError(infeasibility(min(valued, key=lambda each: each.excess(limits)), problem))
    return [_least_stale(max(fits, key=lambda each: each.samples_per_s), problem), *fits]


def _least_stale(best: EvaluatedPlan, problem: Problem) -> EvaluatedPlan:
    """Return the plan with the least staleness that is as fast, and with sums by hosts if those are faster."""
    plan = best.plan
    if not any(layout.num_hot or layout.kind == "replicated" for layout in plan.layouts):
        return EvaluatedPlan.of(replace(plan, every=1, hierarchical=False), problem)
    most = problem.limits.max_staleness + 1
    counts = sorted({1, most, plan.every, *(2**k for k in range(1, most.bit_length()) if 2**k <= most)})
    tried = [
        EvaluatedPlan.of(replace(plan, every=every, hierarchical=by_host), problem)
        for every in counts
        for by_host in sorted({False, problem.has_shared_hosts})
    ]
    tried = [each for each in tried if each.excess(problem.limits) == 0]
    least = min([best, *tried], key=lambda each: each.cost.total_s).cost.total_s
    return next(each for each in [*tried, best] if each.cost.total_s <= least * (1 + _SAME))


def _prices(limits: PlacementLimits) -> list[ResourcePrices]:
    """Return prices of seconds: more of what is limited, which tables chosen one by one do not see."""
    dear = (4.0, 16.0, 64.0)
    wire = [ResourcePrices(wire=price) for price in dear] if limits.sent_bytes is not None else []
    work = [ResourcePrices(work=price) for price in dear] if limits.work_s is not None else []
    return [ResourcePrices(), *wire, *work]
