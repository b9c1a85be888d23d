"""Layouts of a few tables that differ in everything that a layout can differ in. No torch."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.recsys.frequencies.rows import Frequencies
from pliant.spec import EmbeddingPlan, Table, TableLayout

ROWS = (60_000, 60_000, 20_000, 20_000, 7_400, 2_200, 980, 150, 36, 10)
DIMS = (64, 32, 64, 16, 32, 64, 32, 16, 64, 32)
POOLINGS = {"one-hot": (1,) * len(ROWS), "multi-hot": (10, 1, 4, 20, 2, 8, 1, 3, 12, 1)}
"""Ids of each bag, by the name of a data set."""
_SMALL = 1_000
_LARGE = 10_000
_MIXTURES = 6

Layout = Callable[[int], TableLayout]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What all layouts have in common."""

    num_ranks: int
    batch: int
    frequencies: Frequencies
    poolings: tuple[int, ...]
    ranks_per_host: int = 1

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables' records."""
        return tuple(Table(name=f"t{t}", num_rows=rows, dim=DIMS[t]) for t, rows in enumerate(ROWS))

    def likely(self, table: int, least: float) -> int:
        """Return how many rows of those that are known by id are in a rank's batch with at least this chance."""
        p, rows = self.frequencies.tables[table].bins
        chance = -np.expm1(self.batch * self.poolings[table] * np.log1p(-np.minimum(p, 1 - 1e-12)))
        return min(int(rows[chance >= least].sum()), self.frequencies.tables[table].head_ids.size)


def layouts(frame: Frame) -> dict[str, EmbeddingPlan]:
    """Return plans by name."""
    n = frame.num_ranks
    rows = TableLayout(kind="rows")
    sums = TableLayout(kind="rows", moves="sums")
    replicated = TableLayout(kind="replicated")

    def home(t: int) -> TableLayout:
        return TableLayout(kind="table", homes=(t % n,), moves="sums")

    def columns(t: int, parts: int) -> TableLayout:
        return TableLayout(kind="columns", homes=tuple((t + k) % n for k in range(parts)), moves="sums")

    def hot(t: int, least: float, base: TableLayout = rows) -> TableLayout:
        return replace(base, num_hot=frame.likely(t, least))

    def by_size(small: Layout, middle: Layout, large: Layout) -> Layout:
        return lambda t: (small if ROWS[t] <= _SMALL else middle if ROWS[t] <= _LARGE else large)(t)

    def all_of(layout: TableLayout) -> Layout:
        return lambda t: layout

    def narrow(of: Layout, bits: int) -> Layout:
        return lambda t: replace(of(t), bits=bits)

    kinds: dict[str, tuple[Layout, int]] = {
        "pooled at homes": (home, 1),
        "rows at homes": (lambda t: replace(home(t), moves="vectors"), 1),
        "all pooled at rank 0": (lambda t: home(0), 1),
        "half at rank 0": (lambda t: home(0) if t % 2 else rows, 1),
        "columns on 2": (lambda t: columns(t, 2), 1),
        "columns on all": (lambda t: columns(t, n), 1),
        "rows": (all_of(rows), 1),
        "rows with repeats": (all_of(replace(rows, distinct=False)), 1),
        "partial sums": (all_of(sums), 1),
        "replicated": (all_of(replicated), 1),
        "hot 90 %": (lambda t: hot(t, 0.9), 1),
        "hot 30 %": (lambda t: hot(t, 0.3), 1),
        "hot 3 %": (lambda t: hot(t, 0.03), 1),
        "hot 30 %, partial sums": (lambda t: hot(t, 0.3, sums), 1),
        "small replicated, rows": (by_size(all_of(replicated), all_of(rows), all_of(rows)), 1),
        "small replicated, pooled": (by_size(all_of(replicated), home, home), 1),
        "small replicated, pooled, rows": (by_size(all_of(replicated), home, all_of(rows)), 1),
        "pooled, rows, columns": (by_size(home, all_of(rows), lambda t: columns(t, 2)), 1),
        "replicated, partial sums, hot": (by_size(all_of(replicated), all_of(sums), lambda t: hot(t, 0.3)), 1),
    }
    for name, bits in (("pooled at homes", 16), ("pooled at homes", 8), ("rows", 16), ("rows", 8), ("partial sums", 8)):
        kinds[f"{name}, {bits} bits"] = narrow(kinds[name][0], bits), 1
    kinds["rows 16 bits, pooled 8"] = by_size(narrow(home, 8), narrow(home, 8), narrow(all_of(rows), 16)), 1
    kinds["hot 30 %, 16 bits"] = narrow(kinds["hot 30 %"][0], 16), 1
    for name, every in (
        ("replicated", 8),
        ("hot 90 %", 4),
        ("hot 30 %", 4),
        ("hot 30 %", 8),
        ("hot 3 %", 16),
        ("small replicated, pooled, rows", 4),
        ("replicated, partial sums, hot", 8),
    ):
        kinds[f"{name}, every {every}"] = kinds[name][0], every
    kinds["hot 3 %, 16 bits, every 8"] = narrow(kinds["hot 3 %"][0], 16), 8
    kinds |= {f"mixture {k}": _mixture(k, list(kinds.values())) for k in range(_MIXTURES)}
    plans = {name: _plan(frame, [of(t) for t in range(len(ROWS))], every) for name, (of, every) in kinds.items()}
    if frame.ranks_per_host > 1:
        on_all = {name: plan for name, plan in plans.items() if any(_is_on_all(layout) for layout in plan.layouts)}
        plans |= {f"{name}, by hosts": replace(plan, hierarchical=True) for name, plan in on_all.items()}
    return plans


def _is_on_all(layout: TableLayout) -> bool:
    return layout.kind == "replicated" or layout.num_hot > 0


def _mixture(seed: int, kinds: Sequence[tuple[Layout, int]]) -> tuple[Layout, int]:
    """Give each table the layout that it has in some other plan."""
    draw = random.Random(seed)
    chosen = [draw.choice(kinds)[0] for _ in ROWS]
    return (lambda t: chosen[t](t)), draw.choice((1, 1, 4))


def _plan(frame: Frame, of_tables: Sequence[TableLayout], every: int) -> EmbeddingPlan:
    return EmbeddingPlan(
        tables=frame.tables,
        layouts=tuple(of_tables),
        num_ranks=frame.num_ranks,
        batch_size=frame.batch,
        every=every,
    )
