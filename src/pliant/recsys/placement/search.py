"""Contributions of tables to a step, known once computed, and layouts that a search begins with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pliant.recsys.placement.candidates import CandidateLayouts
from pliant.recsys.placement.curves import ROWS, ResourcePrices, contribution, one_byte_each_s
from pliant.recsys.placement.expected_traffic import expected_lookups
from pliant.recsys.placement.loads import Shared, shared_by
from pliant.recsys.placement.problem import Problem
from pliant.recsys.placement.search_state import PlacementModel, longest_first
from pliant.spec import EmbeddingPlan, TableLayout
from pliant.spec.embedding import Piece

__all__ = ["Layouts", "PlacementSearch"]

Floats = npt.NDArray[np.float64]

_MOST_PIECES = 10_000
"""Up to which all tables are tried by columns of every rank."""


class Layouts:
    """Layouts of all tables, with the sum of what they make ranks do."""

    def __init__(self, search: "PlacementSearch", layouts: Sequence[TableLayout]) -> None:
        self.layouts = list(layouts)
        search.learn(list(enumerate(layouts)))
        self.rows = [search.row(t, layout) for t, layout in enumerate(layouts)]
        self.state = np.sum(self.rows, axis=0)  # (15, ranks)
        self.shared = sum((search.shared(t, layout) for t, layout in enumerate(layouts)), Counter[Shared]())
        self.score = search.score(self.state, self.shared)


class PlacementSearch:
    """One batch size, one `every`, one topology: contributions of tables, and layouts to begin with."""

    def __init__(self, problem: Problem, frame: EmbeddingPlan) -> None:
        self.problem, self.frame, self.model = problem, frame, PlacementModel(problem, frame)
        self.pair_s = one_byte_each_s(self.model.links) / frame.num_ranks
        """Of a byte that every rank asks one owner for, on average over owners"""
        self._candidates: dict[ResourcePrices, CandidateLayouts] = {}
        self._known: dict[tuple[int, TableLayout], Floats] = {}
        self._shared: dict[tuple[int, TableLayout], Counter[Shared]] = {}

    def candidates(self, prices: ResourcePrices) -> CandidateLayouts:
        """Return the candidates at some prices of work and links."""
        if prices not in self._candidates:
            self._candidates[prices] = CandidateLayouts(self.problem, self.frame, self.model, prices)
        return self._candidates[prices]

    def learn(self, wanted: Sequence[tuple[int, TableLayout]]) -> None:
        """Compute contributions that are not known yet, all at once."""
        new = [key for key in dict.fromkeys(wanted) if key not in self._known]
        pieces: list[Piece] = []
        whose: list[tuple[int, TableLayout]] = []
        for t, layout in new:
            alone = replace(self.frame, tables=(self.frame.tables[t],), layouts=(layout,))
            own = [replace(piece, index=t) for piece in alone.pieces()]
            self._shared[t, layout] = Counter(shared_by(self.frame, own))
            pieces += own
            whose += [(t, layout)] * len(own)
        if not pieces:
            return
        rows = contribution(
            self.frame, pieces, expected_lookups(self.frame, pieces, self.problem.bins), self.problem.rates
        )
        for key, row in zip(whose, rows, strict=True):
            self._known[key] = self._known[key] + row if key in self._known else row

    def row(self, table: int, layout: TableLayout) -> Floats:
        """Return the contribution (15, ranks) of a table."""
        if (table, layout) not in self._known:
            self.learn([(table, layout)])
        return self._known[table, layout]

    def shared(self, table: int, layout: TableLayout) -> Counter[Shared]:
        """Return what a table has in common with those laid out alike, once each."""
        self.row(table, layout)
        return self._shared[table, layout]

    def score(self, state: Floats, shared: Counter[Shared]) -> float:
        """Return seconds, with penalties, of a state (15, ranks)."""
        return float(self.model.evaluate(state[None], np.array([self.model.shared_s(shared)])).score[0])

    def starts(self, prices: Sequence[ResourcePrices]) -> list[Layouts]:
        """Return layouts to begin with: the best one by one at prices of memory around the one that fits; all alike."""
        found: dict[tuple[TableLayout, ...], Layouts] = {}

        def add(layouts: Sequence[TableLayout]) -> None:
            placed = tuple(self.at_homes(layouts))
            if placed not in found:
                found[placed] = Layouts(self, placed)

        for each in prices:
            candidates = self.candidates(each)
            price = candidates.fitting_price(0.97 * self.problem.limits.memory_bytes)
            for factor in (1.0, 0.5, 2.0) if price else (0.0,):
                choice, _ = candidates.best(price * factor)
                add([candidates.layout(t, k, cut) for t, (k, cut) in enumerate(choice)])
        for layouts in self.uniform().values():
            add(layouts)
        return sorted(found.values(), key=lambda each: each.score)

    def uniform(self) -> dict[str, list[TableLayout]]:
        """Return the layouts that are the same for all tables; homes are not chosen."""
        num, n = len(self.frame.tables), self.frame.num_ranks
        alike = {
            "all pooled at homes": TableLayout(kind="table", homes=(0,), moves="sums"),
            "all rows as vectors": TableLayout(kind="rows"),
            "all rows as sums": TableLayout(kind="rows", moves="sums"),
            "all replicated": TableLayout(kind="replicated"),
        }
        found = {name: [layout] * num for name, layout in alike.items()}
        narrowest = min(table.dim for table in self.frame.tables)
        if self.frame.may_cut_columns and 1 < n <= narrowest and num * n <= _MOST_PIECES:
            found["all by columns"] = [TableLayout(kind="columns", homes=tuple(range(n)), moves="sums")] * num
        return found

    def at_homes(self, layouts: Sequence[TableLayout]) -> list[TableLayout]:
        """Return the layouts with homes chosen: the longest processing time first."""
        homeless = [t for t, layout in enumerate(layouts) if layout.homes]
        placed = list(layouts)
        if not homeless:
            return placed
        self.learn(list(enumerate(layouts)))
        settled = [self.row(t, layout) for t, layout in enumerate(layouts) if not layout.homes]
        rest = np.sum([np.zeros((ROWS, self.frame.num_ranks)), *settled], axis=0)
        room = self.problem.limits.memory_bytes - rest[8] - rest[9] - np.maximum(rest[10], rest[11])
        parts = [len(layouts[t].homes) for t in homeless]
        sizes = [float(self.row(t, layouts[t])[8].max()) for t in homeless]
        seconds = [
            float(row[:6].sum() + self.pair_s * (row[6].sum() + 2 * row[7].sum())) / k
            for row, k in ((self.row(t, layouts[t]), k) for t, k in zip(homeless, parts, strict=True))
        ]
        for t, homes in zip(homeless, longest_first(seconds, sizes, parts, room), strict=True):
            placed[t] = replace(layouts[t], homes=homes)
        return placed
