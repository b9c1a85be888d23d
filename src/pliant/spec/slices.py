"""Slices of a message between two ranks, segments of a ring, and ranks that send straight to all others."""

__all__ = ["MOST_STRAIGHT_PEERS", "RING_SEGMENT_BYTES", "SLICE_BYTES"]

SLICE_BYTES = 256 * 1024
"""Bytes of a message for which one more connection is used."""
RING_SEGMENT_BYTES = 1 << 20
"""Longest segment of Gloo's ring."""
MOST_STRAIGHT_PEERS = 26
"""Ranks up to which each sends few numbers to all others at once, and not around a ring."""
