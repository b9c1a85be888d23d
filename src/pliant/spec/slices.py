"""Slices of a message between two ranks that have several connections."""

__all__ = ["SLICE_BYTES"]

SLICE_BYTES = 256 * 1024
"""Bytes of a message for which one more connection is used."""
