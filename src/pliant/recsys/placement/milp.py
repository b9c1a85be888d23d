"""The best layouts of few tables as an integer program: a binary for each table and layout that is in question."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pliant.netmodel import Links
from pliant.recsys.placement.curves import ResourcePrices
from pliant.recsys.placement.loads import Shared
from pliant.recsys.placement.search import Layouts, PlacementSearch
from pliant.spec import TableLayout

__all__ = ["milp_candidates", "solve_milp"]

Floats = npt.NDArray[np.float64]

_LIMIT_S = 30.0


def milp_candidates(search: PlacementSearch, found: Layouts, table: int) -> list[TableLayout]:
    """Return the layouts of a table that come into question: every home, and hot rows by powers of two."""
    candidates, n = search.candidates(ResourcePrices()), search.frame.num_ranks
    options = [found.layouts[table]]
    for k, costs in enumerate(candidates.costs):
        if not np.isfinite(costs.seconds[table]).any():
            continue
        if costs.num_parts:
            options += [
                replace(costs.layout, homes=tuple((first + j) % n for j in range(costs.num_parts)))
                for first in range(n)
            ]
        elif costs.layout.kind == "rows":
            last, step = len(costs.num_hot[table]) - 1, 1
            cuts = {0, int(costs.seconds[table].argmin()), last}
            while step <= last:
                cuts.add(step)
                step *= 2
            options += [candidates.layout(table, k, cut) for cut in sorted(cuts)]
        else:
            options.append(costs.layout)
    return list(dict.fromkeys(options))


def solve_milp(search: PlacementSearch, found: Layouts) -> list[TableLayout]:
    """Return the best layouts among those in question, by the model of the search; at least as good as what was found.

    Minimize the sum, over stages and phases, of the time of the busiest rank or host; each of them is at least what
    every rank or host needs, which is linear in the choices; memory of every rank stays in its limit, with messages
    and with a change of the hot rows. What tables share (a lookup, an all-reduce) is a binary of its own. Limits
    of sent bytes are for the local search; here they are not seen.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # here, since it takes long to import
    from scipy.sparse import coo_matrix

    options = [milp_candidates(search, found, t) for t in range(len(found.layouts))]
    search.learn([(t, layout) for t, those in enumerate(options) for layout in those])
    program = _Program(search, options)
    rows, columns, values = zip(*program.entries, strict=True)
    matrix = coo_matrix((values, (rows, columns)), shape=(len(program.low), program.num_columns))
    low, high, most = (np.array(each) for each in (program.low, program.high, program.most))
    linear = cast(Any, LinearConstraint)(matrix.tocsr(), low, high)
    bounds = cast(Any, Bounds)(np.zeros(program.num_columns), most)
    done: Any = milp(
        np.array(program.prices),
        constraints=linear,
        integrality=np.array(program.is_whole),
        bounds=bounds,
        options={"time_limit": _LIMIT_S, "mip_rel_gap": 1e-4},
    )
    if done.x is None:
        return list(found.layouts)
    return [
        those[int(done.x[first : first + len(those)].argmax())]
        for first, those in zip(program.firsts, options, strict=True)
    ]


class _Program:
    """Columns: a binary for each table and layout; seconds of each stage and phase; a binary for each dim."""

    def __init__(self, search: PlacementSearch, options: Sequence[Sequence[TableLayout]]) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.prices: list[float] = []
        self.most: list[float] = []
        self.is_whole: list[int] = []
        self.firsts: list[int] = []
        model = search.model
        rows: list[Floats] = []
        reduced = model.sync_s
        for t, those in enumerate(options):
            self.firsts.append(self.num_columns)
            for layout in those:
                row = search.row(t, layout)
                rows.append(row)
                self._column(float(reduced * row[12:14, 0].sum()), 1.0, whole=True)
            self._constraint([(self.firsts[t] + k, 1.0) for k in range(len(those))], 1.0, 1.0)
        every = np.stack(rows)  # (options, 15, ranks)
        self._memory(every, model.limits.memory_bytes)
        for stage in range(6):
            self._busiest(every[:, stage])
        for part, back in ((6, False), (7, True), (7, False)):
            self._busiest(_host_seconds(every[:, part], search.model.links, back=back))
        self._shared(search, options)

    @property
    def num_columns(self) -> int:
        return len(self.prices)

    def _column(self, price: float, most: float, *, whole: bool) -> int:
        self.prices.append(price)
        self.most.append(most)
        self.is_whole.append(int(whole))
        return self.num_columns - 1

    def _constraint(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self.entries += [(len(self.low), column, value) for column, value in terms if value]
        self.low.append(low)
        self.high.append(high)

    def _memory(self, rows: Floats, limit: float) -> None:
        for extra in (10, 11):
            used = (rows[:, 8] + rows[:, 9] + rows[:, extra]) / limit  # (options, ranks)
            for rank in range(used.shape[1]):
                self._constraint(list(enumerate(used[:, rank].tolist())), -np.inf, 1.0)

    def _busiest(self, seconds: Floats) -> None:
        """Add a column that is at least the sum, of each resource, of chosen options' seconds (options, resources)."""
        longest = self._column(1.0, np.inf, whole=False)
        for resource in range(seconds.shape[1]):
            terms = [*enumerate(seconds[:, resource].tolist()), (longest, -1.0)]
            self._constraint(terms, -np.inf, 0.0)

    def _shared(self, search: PlacementSearch, options: Sequence[Sequence[TableLayout]]) -> None:
        """Add a column for all that tables can share, which is 1 where an option that has it is chosen."""
        columns: dict[Shared, int] = {}
        for t, those in enumerate(options):
            for k, layout in enumerate(those):
                for key in search.shared(t, layout):
                    if key not in columns:
                        columns[key] = self._column(search.model.shared_s([key]), 1.0, whole=True)
                    self._constraint([(self.firsts[t] + k, 1.0), (columns[key], -1.0)], -np.inf, 0.0)


def _host_seconds(asked: Floats, links: Links, *, back: bool) -> Floats:
    """Return seconds (options, resources) of hosts' rates out and in for bytes that each rank asks each owner for."""
    per_host = np.add.reduceat(asked, links.starts, axis=-1)  # (options, hosts)
    total = per_host.sum(axis=-1, keepdims=True)
    out, into = links.sizes * (total - per_host), (links.num_ranks - links.sizes) * per_host
    if back:
        out, into = into, out
    inside = (links.sizes - 1) * per_host / links.overheads.loopback_bytes_per_s
    factor = links.overheads.wire_factor
    return np.concatenate([factor * out * links.out_s, factor * into * links.in_s, inside], axis=1)
