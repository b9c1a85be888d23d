"""Which plan pays is found out while a run trains: trials, bounds on accuracy, monitoring."""

from pliant.autotune.bounds import QualityBounds
from pliant.autotune.options import Auto

__all__ = ["Auto", "QualityBounds"]
