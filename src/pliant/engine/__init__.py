"""The one place that touches a live model."""

from pliant.engine.agreement import ReplicasDisagreeError
from pliant.engine.auto import Auto
from pliant.engine.bounds import Bounds
from pliant.engine.elastic import Elastic
from pliant.engine.exchange import NonFiniteGradientError
from pliant.engine.felt import Curvature, Look
from pliant.engine.loading import load_run
from pliant.engine.observe import Observation, observe
from pliant.engine.record import Recording, record
from pliant.engine.relax import relax
from pliant.engine.resize import resize
from pliant.engine.run import Run
from pliant.engine.stats import Stats
from pliant.engine.watch import IncompleteBackwardError

__all__ = [
    "Auto",
    "Bounds",
    "Curvature",
    "Elastic",
    "IncompleteBackwardError",
    "Look",
    "NonFiniteGradientError",
    "Observation",
    "Recording",
    "ReplicasDisagreeError",
    "Run",
    "Stats",
    "load_run",
    "observe",
    "record",
    "relax",
    "resize",
]
