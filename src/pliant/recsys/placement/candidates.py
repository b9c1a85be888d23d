"""Menu of each table: seconds and bytes of every layout, and the best for a price of memory."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pliant.recsys.placement.curves import Quantities, ResourcePrices, contribution, priced
from pliant.recsys.placement.expected_traffic import ExpectedLookups
from pliant.recsys.placement.problem import Problem
from pliant.recsys.placement.search_state import PlacementModel
from pliant.spec import EmbeddingPlan, Table, TableLayout

__all__ = ["Bits", "CandidateLayouts", "LayoutCosts", "family"]

Floats = npt.NDArray[np.float64]
Moves = Literal["vectors", "sums"]
Bits = Literal[32, 16, 8]

_UNITS = ("ids", "vectors", "bags", "lookups", "warm", "updated", "touched")


@dataclass(frozen=True, eq=False)
class LayoutCosts:
    """One layout for all tables (t): seconds and bytes (t, cuts) if loads are balanced; homes are not chosen yet."""

    layout: TableLayout
    num_parts: int
    """Ranks that one table is on: of a home, or of columns; 0 where all have some."""
    seconds: Floats
    """Infinite where a table cannot have this layout."""
    num_bytes: Floats
    """Mean over ranks."""
    num_hot: Floats
    """(t, cuts)"""


def family(layout: TableLayout) -> str:
    """Return what people call a layout."""
    if layout.kind == "rows":
        return f"rows as {layout.moves}" + (" + hot" if layout.num_hot else "")
    return {"table": "pooled at home", "columns": "columns"}.get(layout.kind, "replicated")


class CandidateLayouts:
    """Costs of every candidate layout for all tables of a frame, which has them all by rows."""

    def __init__(self, problem: Problem, frame: EmbeddingPlan, model: PlacementModel, prices: ResourcePrices) -> None:
        self.frame, self.bins, self.model, self.prices = frame, problem.bins, model, prices
        self.quantities = Quantities.of(problem.bins, frame)
        self.row_bytes = np.array([frame.row_bytes(piece) for piece in frame.pieces()])[:, None]  # (t, 1)
        self.dims = np.array([table.dim for table in frame.tables])[:, None]
        self.num_rows = np.array([table.num_rows for table in frame.tables], np.float64)[:, None]
        self._unit: dict[tuple[int, str, int, bool, int], Floats] = {}
        n = frame.num_ranks
        self.costs: list[LayoutCosts] = [self._of_all()]
        for each in problem.limits.bits:
            self.costs.append(self._rows(TableLayout(kind="rows", moves="vectors", bits=each)))
            self.costs.append(self._rows(TableLayout(kind="rows", moves="sums", bits=each)))
            self.costs.append(self._at_homes(each, 1))
            for parts in sorted({2, n} - {1}):
                if frame.may_cut_columns and 1 < parts <= n:
                    self.costs.append(self._at_homes(each, parts))

    def best(self, price_s: float) -> tuple[list[tuple[int, int]], float]:
        """Return (layout, cut) for each table if a byte held on every rank costs so much, and mean bytes of a rank."""
        found, lowest = [(0, 0)] * len(self.frame.tables), np.full(len(self.frame.tables), np.inf)
        held = np.zeros(len(lowest))
        for k, costs in enumerate(self.costs):
            score = costs.seconds + price_s * costs.num_bytes
            cuts = score.argmin(axis=1)
            here = np.arange(len(cuts))
            better = score[here, cuts] < lowest
            for t in np.flatnonzero(better):
                found[t] = (k, int(cuts[t]))
            lowest = np.where(better, score[here, cuts], lowest)
            held = np.where(better, costs.num_bytes[here, cuts], held)
        return found, float(held.sum())

    def layout(self, table: int, k: int, cut: int) -> TableLayout:
        """Return the k-th layout for a table, without its homes, which are 0, 1, ... for now."""
        chosen = self.costs[k]
        if chosen.layout.kind == "rows":
            return replace(chosen.layout, num_hot=int(chosen.num_hot[table, cut]))
        return chosen.layout

    def fitting_price(self, num_bytes: float) -> float:
        """Return the least price of a byte at which tables fit into so many bytes of each rank."""
        if self.best(0.0)[1] <= num_bytes:
            return 0.0
        low, high = -40.0, 20.0  # of log: from nothing to more than any byte is worth
        for _ in range(40):
            middle = (low + high) / 2
            if self.best(float(np.exp(middle)))[1] <= num_bytes:
                high = middle
            else:
                low = middle
        return float(np.exp(high))

    def _rows(self, layout: TableLayout) -> LayoutCosts:
        q, frame = self.quantities, self.frame
        seconds, messages = self._priced(layout.moves, layout.bits, q, parts=1)
        hot_bytes = self.row_bytes + 4 * self.dims + 9
        shards = np.ceil(self.num_rows / frame.num_ranks) * self.row_bytes
        change = q.num_hot * (self.row_bytes + 8)
        held = shards + q.num_hot * hot_bytes + np.maximum(messages, change)
        # A cut after the last bin is at no more rows than there are, and at none that nobody ever looks up.
        num_hot = np.minimum(np.floor(q.num_hot + 1e-6), self.num_rows)
        fixed = seconds + self.prices.wire * self.model.sync_s * num_hot / frame.every
        return LayoutCosts(layout, 0, fixed, held, num_hot)

    def _of_all(self) -> LayoutCosts:
        q, frame = self.quantities, self.frame
        zeros = np.zeros_like(self.num_rows)
        last = Quantities(
            num_hot=self.num_rows, vectors=zeros, ids=zeros, bags=zeros, updated=zeros, touched=q.touched[:, -1:]
        )
        seconds, messages = self._priced("vectors", 32, last, parts=1)
        seconds = seconds + self.prices.wire * self.model.sync_s * self.num_rows / frame.every
        held = self.num_rows * (self.row_bytes + 4 * self.dims + 9) + messages
        return LayoutCosts(TableLayout(kind="replicated"), 0, seconds, held, zeros)

    def _at_homes(self, bits: Bits, parts: int) -> LayoutCosts:
        q, frame = self.quantities, self.frame
        filled = np.array(frame.num_bags)[:, None] * self.bins.filled(np.ones((len(frame.tables), 1)))
        none = np.zeros_like(filled)
        whole = Quantities(
            num_hot=none, vectors=filled, ids=q.ids[:, :1], bags=filled, updated=q.updated[:, :1], touched=none
        )
        seconds, messages = self._priced("sums", bits, whole, parts=parts)
        table_bytes = self.num_rows * self.row_bytes
        possible = (table_bytes / parts <= self.model.limits.memory_bytes) & (self.dims >= parts)
        layout = TableLayout(
            kind="table" if parts == 1 else "columns", homes=tuple(range(parts)), moves="sums", bits=bits
        )
        held = table_bytes / frame.num_ranks + messages
        return LayoutCosts(layout, parts, np.where(possible, seconds, np.inf), held, none)

    def _priced(self, moves: Moves, bits: Bits, q: Quantities, parts: int) -> tuple[Floats, Floats]:
        """Return seconds and bytes of messages (t, cuts)."""
        lookups = (np.array(self.frame.num_bags) * self.bins.pooling)[:, None]
        is_sums = moves == "sums"
        vectors = q.bags if is_sums else q.vectors
        asks = (q.ids if is_sums else q.vectors, vectors, q.bags, lookups, lookups - q.ids, q.updated, q.touched)
        kinds: list[tuple[int, Moves, Bits, bool, int]] = [
            (max(1, t.dim // parts), moves, bits, t.weighted, len(t.inputs)) for t in self.frame.tables
        ]
        units = np.array([self._unit_prices(*kind) for kind in kinds])  # (t, 2, 1 + units)
        found = units[:, :, :1] + sum(
            (units[:, :, k + 1 : k + 2] * each[:, None, :] for k, each in enumerate(asks)), np.zeros(1)
        )
        return parts * found[:, 0], parts * found[:, 1]

    def _unit_prices(self, dim: int, moves: Moves, bits: Bits, weighted: bool, num_features: int) -> Floats:
        """Return seconds and bytes (2, 1 + units) of a piece that is asked for nothing, and of one of each more."""
        key = (dim, moves, bits, weighted, num_features)
        if key not in self._unit:
            n = self.frame.num_ranks
            features = tuple(str(k) for k in range(num_features))
            table = Table(name="unit", num_rows=1, dim=dim, weighted=weighted, features=features)
            layout = TableLayout(kind="rows", moves=moves, bits=bits)
            one = replace(self.frame, tables=(table,), layouts=(layout,))
            rows: list[tuple[float, float]] = []
            for unit in ("none", *_UNITS):
                spread = {
                    name: np.full((1, n), float(name == unit) / n) for name in ("ids", "vectors", "bags", "updated")
                }
                single = {name: np.full(1, float(name == unit)) for name in ("lookups", "warm", "touched")}
                asked = ExpectedLookups(**spread, **single, silence=np.zeros((1, n)))
                row = contribution(one, one.pieces(), asked, self.model.rates)[0].copy()
                row[8] = 0.0  # the shard of this table of one row
                rows.append(priced(row, self.model.links, self.prices, self.model.sync_s))
            found = np.array(rows).T
            found[:, 1:] -= found[:, :1]
            self._unit[key] = found
        return self._unit[key]
