"""Engine: the only room that touches a live model and its optimizer."""

from pliant.engine.agreement import ReplicasDisagreeError
from pliant.engine.elastic import Elastic
from pliant.engine.exchange import NonFiniteGradientError
from pliant.engine.felt import Curvature, CurvatureSample
from pliant.engine.loading import load_run
from pliant.engine.resize import resize
from pliant.engine.run import Run
from pliant.engine.starting import start_run
from pliant.engine.stats import RunStats
from pliant.engine.watch import IncompleteBackwardError

__all__ = [
    "Curvature",
    "CurvatureSample",
    "Elastic",
    "IncompleteBackwardError",
    "NonFiniteGradientError",
    "ReplicasDisagreeError",
    "Run",
    "RunStats",
    "load_run",
    "resize",
    "start_run",
]
