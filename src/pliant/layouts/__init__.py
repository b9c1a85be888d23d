"""Rules of the wire that executor and simulator share: cuts, blocks and payload sizes. No torch here."""

from pliant.layouts.blocks import BlockDivision, divide_blocks, row_blocks, values_bytes
from pliant.layouts.division import assign_owners, factor_shape, weight_buckets
from pliant.layouts.payloads import granularity, num_kept, payload_bytes

__all__ = [
    "BlockDivision",
    "assign_owners",
    "divide_blocks",
    "factor_shape",
    "granularity",
    "num_kept",
    "payload_bytes",
    "row_blocks",
    "values_bytes",
    "weight_buckets",
]
