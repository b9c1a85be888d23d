"""Search for the layout of all tables whose step is shortest: one price for memory, homes, then one table at a time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links
from pliant.recsys.bins import RowBins
from pliant.recsys.curves import ROWS, Weights, contribution, one_byte_each_s
from pliant.recsys.expected import asked
from pliant.recsys.menu import Bits, Menu, family
from pliant.recsys.moving import Model, longest_first
from pliant.recsys.rates import Rates
from pliant.recsys.traffic import Shared, shared_by
from pliant.spec import EmbeddingPlan, TableLayout
from pliant.spec.embedding import Piece

__all__ = ["Found", "PlacementSearch"]

Floats = npt.NDArray[np.float64]

_MANY = 200
"""Tables that a pass of the local search looks at: those with most to lose."""
_PASSES = 8
_KICKED, _KICKS = 12, 10
"""Tables up to which the search leaves a local optimum again, and how often."""
_MOST_PIECES = 10_000
"""Up to which all tables are tried by columns of every rank."""
_SWAPPED = 24
"""Tables at homes up to which all pairs are tried for a swap."""


class Found:
    """Layouts of all tables, with the sum of what they make ranks do."""

    def __init__(self, search: "PlacementSearch", layouts: Sequence[TableLayout]) -> None:
        self.layouts = list(layouts)
        search.learn(list(enumerate(layouts)))
        self.rows = [search.row(t, layout) for t, layout in enumerate(layouts)]
        self.state = np.sum(self.rows, axis=0)  # (15, ranks)
        self.shared = sum((search.shared(t, layout) for t, layout in enumerate(layouts)), Counter[Shared]())
        self.score = search.score(self.state, self.shared)


class PlacementSearch:
    """One batch size, one `every`, one topology: contributions of tables, and moves between them."""

    def __init__(
        self, frame: EmbeddingPlan, bins: RowBins, links: Links, rates: Rates, model: Model, bits: tuple[Bits, ...]
    ) -> None:
        self.frame, self.bins, self.links, self.rates, self.model, self.bits = (
            frame,
            bins,
            links,
            rates,
            model,
            bits,
        )
        self.pair_s = one_byte_each_s(links) / links.num_ranks
        """Of a byte that every rank asks one owner for, on average over owners"""
        self._menus: dict[Weights, Menu] = {}
        self._known: dict[tuple[int, TableLayout], Floats] = {}
        self._shared: dict[tuple[int, TableLayout], Counter[Shared]] = {}

    def menu(self, weights: Weights) -> Menu:
        """Return offers at some weights of work and links."""
        if weights not in self._menus:
            self._menus[weights] = Menu(
                self.frame,
                self.bins,
                self.links,
                self.rates,
                bits=self.bits,
                sync_s=self.model.sync_s,
                weights=weights,
                room_bytes=self.model.limits[0],
            )
        return self._menus[weights]

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
        rows = contribution(self.frame, pieces, asked(self.frame, pieces, self.bins), self.rates)
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
        return float(self.model.judge(state[None], np.array([self.model.shared_s(shared)])).score[0])

    def starts(self, weights: Sequence[Weights]) -> list[Found]:
        """Return layouts to begin with: the best one by one at prices of memory around the one that fits; all alike."""
        found: dict[tuple[TableLayout, ...], Found] = {}

        def add(layouts: Sequence[TableLayout], menu: Menu) -> None:
            placed = tuple(self.at_homes(layouts, menu))
            if placed not in found:
                found[placed] = Found(self, placed)

        for each in weights:
            menu = self.menu(each)
            price = menu.fitting_price(0.97 * menu.room_bytes)
            for factor in (1.0, 0.5, 2.0) if price else (0.0,):
                choice, _ = menu.best(price * factor)
                add([menu.layout(t, offer, cut) for t, (offer, cut) in enumerate(choice)], menu)
        menu = self.menu(weights[0])
        for layouts in self.uniform().values():
            add(layouts, menu)
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

    def at_homes(self, layouts: Sequence[TableLayout], menu: Menu) -> list[TableLayout]:
        """Return the layouts with homes chosen: the longest processing time first."""
        homeless = [t for t, layout in enumerate(layouts) if layout.homes]
        placed = list(layouts)
        if not homeless:
            return placed
        self.learn(list(enumerate(layouts)))
        settled = [self.row(t, layout) for t, layout in enumerate(layouts) if not layout.homes]
        rest = np.sum([np.zeros((ROWS, self.frame.num_ranks)), *settled], axis=0)
        room = self.model.limits[0] - rest[8] - rest[9] - np.maximum(rest[10], rest[11])
        parts = [len(layouts[t].homes) for t in homeless]
        sizes = [float(self.row(t, layouts[t])[8].max()) for t in homeless]
        seconds = [
            float(row[:6].sum() + self.pair_s * (row[6].sum() + 2 * row[7].sum())) / k
            for row, k in ((self.row(t, layouts[t]), k) for t, k in zip(homeless, parts, strict=True))
        ]
        for t, homes in zip(homeless, longest_first(seconds, sizes, parts, room), strict=True):
            placed[t] = replace(layouts[t], homes=homes)
        return placed

    def improve(self, found: Found, weights: Weights) -> None:
        """Change one table at a time, or swap two homes, as long as a step gets shorter."""
        menu = self.menu(weights)
        tables = np.argsort([-float(row[:6].sum() + row[7].sum()) for row in found.rows])[:_MANY].tolist()
        passes = _PASSES if len(tables) < _MANY else 1
        for _ in range(passes):
            before = found.score
            for t in tables:
                self._move(found, t, self.neighbours(found, t, menu))
            self._swap(found, tables)
            if found.score > before * (1 - 1e-4):
                break

    def kick(self, found: Found, weights: Weights) -> Found:
        """Leave a local optimum: change two tables at random, improve, and keep what is best, some times."""
        if len(found.layouts) > _KICKED:
            return found
        rng, menu = np.random.default_rng(0), self.menu(weights)
        for _ in range(_KICKS):
            layouts = list(found.layouts)
            for t in rng.permutation(len(layouts))[:2].tolist():
                options = self.neighbours(found, t, menu)
                layouts[t] = options[int(rng.integers(len(options)))]
            other = Found(self, layouts)
            self.improve(other, weights)
            found = min(found, other, key=lambda each: each.score)
        return found

    def _move(self, found: Found, t: int, options: Sequence[TableLayout]) -> None:
        options = [layout for layout in options if layout != found.layouts[t]]
        if not options:
            return
        states, scores = self._tried(found, t, options)
        best = int(scores.argmin())
        if scores[best] < found.score * (1 - 1e-9):
            found.shared = found.shared - self.shared(t, found.layouts[t]) + self.shared(t, options[best])
            found.layouts[t], found.rows[t] = options[best], self.row(t, options[best])
            found.state, found.score = states[best], float(scores[best])

    def _tried(self, found: Found, t: int, options: Sequence[TableLayout]) -> tuple[Floats, Floats]:
        """Return states (m, 15, ranks) and scores (m,) with each of these layouts for one table; others stay."""
        self.learn([(t, layout) for layout in options])
        rest = found.state - found.rows[t]
        states = np.stack([rest + self.row(t, layout) for layout in options])
        others = found.shared - self.shared(t, found.layouts[t])
        rest_s = self.model.shared_s(others)
        shared_s = [rest_s + self.model.shared_s(self.shared(t, layout).keys() - others.keys()) for layout in options]
        return states, self.model.judge(states, np.array(shared_s)).score

    def alternatives(self, found: Found, t: int) -> dict[str, tuple[TableLayout, float]]:
        """Return the best layout of each family for one table, with the score of a step that has it; others stay."""
        options = self.neighbours(found, t, self.menu(Weights()))
        options = list(dict.fromkeys([found.layouts[t], *options]))
        _, scores = self._tried(found, t, options)
        best: dict[str, tuple[TableLayout, float]] = {}
        for layout, score in zip(options, scores.tolist(), strict=True):
            name = family(layout)
            if name not in best or score < best[name][1]:
                best[name] = (layout, score)
        return best

    def neighbours(self, found: Found, t: int, menu: Menu) -> list[TableLayout]:
        """Return layouts to try for a table."""
        n, dim = self.frame.num_ranks, self.frame.tables[t].dim
        rest = found.state - found.rows[t]
        busy = np.argsort(rest[:6].sum(axis=0) + self.pair_s * (rest[6] + 2 * rest[7]), kind="stable")
        homes = range(n) if n <= 16 and len(found.layouts) <= _MANY else busy[:4].tolist()
        options: list[TableLayout] = []
        for k, offer in enumerate(menu.offers):
            if not np.isfinite(offer.seconds[t]).any():
                continue
            layout = offer.layout
            if offer.num_parts == 1:
                options += [replace(layout, homes=(int(home),)) for home in homes]
            elif offer.num_parts > 1 and dim >= offer.num_parts:
                free = [r for r in busy.tolist() if r not in found.layouts[t].homes]
                chosen = [busy[: offer.num_parts].tolist(), [*found.layouts[t].homes, *free][: offer.num_parts]]
                options += [replace(layout, homes=tuple(sorted(ranks))) for ranks in chosen]
            elif layout.kind == "rows":
                options += [menu.layout(t, k, cut) for cut in self._cuts(found, t, offer.seconds[t], offer.num_hot[t])]
            else:
                options.append(layout)
        return list(dict.fromkeys(options))

    def _cuts(self, found: Found, t: int, seconds: Floats, num_hot: Floats) -> list[int]:
        """Return cuts to try: none, the best for the table alone, and steps away from where it is."""
        last = len(num_hot) - 1
        now = int(np.searchsorted(num_hot, found.layouts[t].num_hot))
        near = [now + step for step in (-32, -8, -2, -1, 0, 1, 2, 8, 32)]
        return sorted({0, int(seconds.argmin()), *(min(max(0, k), last) for k in near)})

    def _swap(self, found: Found, tables: Sequence[int]) -> None:
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
                rows = self.row(a, swapped[0]), self.row(b, swapped[1])
                state = found.state - found.rows[a] - found.rows[b] + rows[0] + rows[1]
                score = self.score(state, found.shared)
                if score < found.score * (1 - 1e-9):
                    found.layouts[a], found.layouts[b] = swapped
                    found.rows[a], found.rows[b] = rows
                    found.state, found.score = state, score
