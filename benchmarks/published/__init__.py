"""Figures that others published, beside what the simulator says of them: ``python -m benchmarks.published``."""
