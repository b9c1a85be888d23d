"""Choice of a plan while a run trains: trials, bounds on quality, monitoring."""

from pliant.autotune.bounds import QualityBounds
from pliant.autotune.options import Auto

__all__ = ["Auto", "QualityBounds"]
