"""What is published of the Criteo Terabyte click log: sizes of its tables, columns of its files."""

__all__ = ["CRITEO_BAGS", "CRITEO_ROWS", "NUM_DENSE"]

CRITEO_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938,
    155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
"""Rows of the 26 tables, capped at 40 million, as in MLPerf's DLRM benchmark."""

CRITEO_BAGS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Lookups per sample of the 26 tables, as in the multi-hot second version of that benchmark."""

NUM_DENSE = 13
"""Features of a sample that are numbers."""
