"""The embedding tables of the Criteo Terabyte benchmark of MLPerf, as published."""

from pliant.spec import Table

__all__ = ["CRITEO_BAGS", "CRITEO_ROWS", "criteo_tables"]

CRITEO_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
"""Rows of the 26 tables, capped at 40 million."""
CRITEO_BAGS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids in each bag of its multi-hot variant."""


def criteo_tables(dim: int, *, most_rows: int = 40_000_000) -> tuple[Table, ...]:
    """Return the 26 tables; `most_rows` makes them smaller."""
    return tuple(Table(name=f"C{k}", num_rows=min(n, most_rows), dim=dim) for k, n in enumerate(CRITEO_ROWS, start=1))
