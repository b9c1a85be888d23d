"""Local search over layouts: one table changed at a time, homes swapped, and local optima left again."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pliant.recsys.placement.candidates import family
from pliant.recsys.placement.curves import ResourcePrices
from pliant.recsys.placement.search import Layouts, PlacementSearch
from pliant.spec import TableLayout

__all__ = ["alternatives", "improve", "perturb"]

Floats = npt.NDArray[np.float64]

_MANY = 200
"""Tables that a pass of the local search looks at: those with most to lose."""
_PASSES = 8
_PERTURBED, _PERTURBATIONS = 12, 10
"""Tables up to which the search leaves a local optimum again, and how often."""
_SWAPPED = 24
"""Tables at homes up to which all pairs are tried for a swap."""


def improve(search: PlacementSearch, found: Layouts) -> None:
    """Change one table at a time, or swap two homes, as long as a step gets shorter."""
    tables = np.argsort([-float(row[:6].sum() + row[7].sum()) for row in found.rows])[:_MANY].tolist()
    passes = _PASSES if len(tables) < _MANY else 1
    for _ in range(passes):
        before = found.score
        for t in tables:
            _move(search, found, t)
        _swap(search, found, tables)
        if found.score > before * (1 - 1e-4):
            break


def perturb(search: PlacementSearch, found: Layouts) -> Layouts:
    """Leave a local optimum: change two tables at random, improve, and keep what is best, some times."""
    if len(found.layouts) > _PERTURBED:
        return found
    rng = np.random.default_rng(0)
    for _ in range(_PERTURBATIONS):
        layouts = list(found.layouts)
        for t in rng.permutation(len(layouts))[:2].tolist():
            options = _neighbours(search, found, t)
            layouts[t] = options[int(rng.integers(len(options)))]
        other = Layouts(search, layouts)
        improve(search, other)
        found = min(found, other, key=lambda each: each.score)
    return found


def _move(search: PlacementSearch, found: Layouts, t: int) -> None:
    """Give a table the best other layout, if a step gets shorter by it."""
    options = [layout for layout in _neighbours(search, found, t) if layout != found.layouts[t]]
    if not options:
        return
    states, scores = _tried(search, found, t, options)
    best = int(scores.argmin())
    if scores[best] < found.score * (1 - 1e-9):
        found.shared = found.shared - search.shared(t, found.layouts[t]) + search.shared(t, options[best])
        found.layouts[t], found.rows[t] = options[best], search.row(t, options[best])
        found.state, found.score = states[best], float(scores[best])


def _tried(search: PlacementSearch, found: Layouts, t: int, options: Sequence[TableLayout]) -> tuple[Floats, Floats]:
    """Return states (m, 15, ranks) and scores (m,) with each of these layouts for one table; others stay."""
    search.learn([(t, layout) for layout in options])
    rest = found.state - found.rows[t]
    states = np.stack([rest + search.row(t, layout) for layout in options])
    others = found.shared - search.shared(t, found.layouts[t])
    rest_s = search.model.shared_s(others)
    shared_s = [rest_s + search.model.shared_s(search.shared(t, layout).keys() - others.keys()) for layout in options]
    return states, search.model.evaluate(states, np.array(shared_s)).score


def alternatives(search: PlacementSearch, found: Layouts, t: int) -> dict[str, tuple[TableLayout, float]]:
    """Return the best layout of each family for one table, with the score of a step that has it; others stay."""
    options = list(dict.fromkeys([found.layouts[t], *_neighbours(search, found, t)]))
    _, scores = _tried(search, found, t, options)
    best: dict[str, tuple[TableLayout, float]] = {}
    for layout, score in zip(options, scores.tolist(), strict=True):
        name = family(layout)
        if name not in best or score < best[name][1]:
            best[name] = (layout, score)
    return best


def _neighbours(search: PlacementSearch, found: Layouts, t: int) -> list[TableLayout]:
    """Return layouts to try for a table."""
    candidates = search.candidates(ResourcePrices())
    n, dim = search.frame.num_ranks, search.frame.tables[t].dim
    rest = found.state - found.rows[t]
    busy = np.argsort(rest[:6].sum(axis=0) + search.pair_s * (rest[6] + 2 * rest[7]), kind="stable")
    homes = range(n) if n <= 16 and len(found.layouts) <= _MANY else busy[:4].tolist()
    options: list[TableLayout] = []
    for k, costs in enumerate(candidates.costs):
        if not np.isfinite(costs.seconds[t]).any():
            continue
        layout = costs.layout
        if costs.num_parts == 1:
            options += [replace(layout, homes=(int(home),)) for home in homes]
        elif costs.num_parts > 1 and dim >= costs.num_parts:
            free = [r for r in busy.tolist() if r not in found.layouts[t].homes]
            chosen = [busy[: costs.num_parts].tolist(), [*found.layouts[t].homes, *free][: costs.num_parts]]
            options += [replace(layout, homes=tuple(sorted(ranks))) for ranks in chosen]
        elif layout.kind == "rows":
            options += [candidates.layout(t, k, cut) for cut in _cuts(found, t, costs.seconds[t], costs.num_hot[t])]
        else:
            options.append(layout)
    return list(dict.fromkeys(options))


def _cuts(found: Layouts, t: int, seconds: Floats, num_hot: Floats) -> list[int]:
    """Return cuts to try: none, the best for the table alone, and steps away from where it is."""
    last = len(num_hot) - 1
    now = int(np.searchsorted(num_hot, found.layouts[t].num_hot))
    near = [now + step for step in (-32, -8, -2, -1, 0, 1, 2, 8, 32)]
    return sorted({0, int(seconds.argmin()), *(min(max(0, k), last) for k in near)})


def _swap(search: PlacementSearch, found: Layouts, tables: Sequence[int]) -> None:
    """Swap the homes of two tables where that helps."""
    single = [t for t in tables if found.layouts[t].kind == "table"][:_SWAPPED]
    for k, a in enumerate(single):
        for b in single[k + 1 :]:
            if found.layouts[a].homes == found.layouts[b].homes:
                continue
            swapped = (
                replace(found.layouts[a], homes=found.layouts[b].homes),
                replace(found.layouts[b], homes=found.layouts[a].homes),
            )
            rows = search.row(a, swapped[0]), search.row(b, swapped[1])
            state = found.state - found.rows[a] - found.rows[b] + rows[0] + rows[1]
            score = search.score(state, found.shared)
            if score < found.score * (1 - 1e-9):
                found.layouts[a], found.layouts[b] = swapped
                found.rows[a], found.rows[b] = rows
                found.state, found.score = state, score
