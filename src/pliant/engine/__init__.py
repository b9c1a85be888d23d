"""The one place that touches a live model."""

from pliant.engine.agreement import ReplicasDisagreeError
from pliant.engine.curvature_requests import Curvature, CurvatureSample
from pliant.engine.elastic import Elastic
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.loading import load_run
from pliant.engine.resize import resize
from pliant.engine.run import Run
from pliant.engine.run_start import start_run
from pliant.engine.stats import RunStats
from pliant.engine.unused_parameters import IncompleteBackwardError

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
