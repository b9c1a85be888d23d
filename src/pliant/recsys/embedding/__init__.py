"""Sharded embedding tables at run time: lookups, gradients, and the optimizer of rows."""

__all__: list[str] = []
