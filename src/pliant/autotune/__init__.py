"""Which plan pays is found out while a run trains: trials, bounds on accuracy, monitoring."""

from pliant.autotune.bounds import Bounds
from pliant.autotune.options import Auto

__all__ = ["Auto", "Bounds"]
