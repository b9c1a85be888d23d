"""Clicks to measure with: generated ones, how well they are predicted, and laws that describe a log."""

__all__: list[str] = []
