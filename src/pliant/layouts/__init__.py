"""Rules of the wire that executor and simulator share: cuts, blocks and payload sizes. No torch here."""

from pliant.layouts.blocks import BlockDivision, divide_blocks, row_blocks, values_bytes
from pliant.layouts.division import factor_shape, weight_buckets
from pliant.layouts.parts import OwnedParts, joint_numel, place_parts
from pliant.layouts.payloads import granularity, num_kept, payload_bytes

__all__ = [
    "BlockDivision",
    "OwnedParts",
    "divide_blocks",
    "factor_shape",
    "granularity",
    "joint_numel",
    "num_kept",
    "payload_bytes",
    "place_parts",
    "row_blocks",
    "values_bytes",
    "weight_buckets",
]
