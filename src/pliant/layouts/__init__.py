"""Rules of the wire that executor and simulator share: cuts, blocks and payload sizes. No torch here."""

from pliant.layouts.blocks import Divided, divided, rows_of, values_bytes
from pliant.layouts.division import factor_shape, num_hops, place, weight_buckets
from pliant.layouts.payloads import granularity, num_kept, payload_bytes

__all__ = [
    "Divided",
    "divided",
    "factor_shape",
    "granularity",
    "num_hops",
    "num_kept",
    "payload_bytes",
    "place",
    "rows_of",
    "values_bytes",
    "weight_buckets",
]
