"""Feel how the loss curves, while a model trains. No communication here: sums over ranks are the caller's."""

from pliant.curvature.estimators import Estimator, Fisher, GaussNewton
from pliant.curvature.hessian import Hutchinson, hessian
from pliant.curvature.losses import LossName, recognized
from pliant.curvature.refresh import RefreshInterval, log_shift, spearman
from pliant.curvature.spectrum import TraceEstimate, top_eigenvalues, trace
from pliant.curvature.structure import block_means, settled, view_means
from pliant.curvature.task import Task, find_logits, untouched

__all__ = [
    "Estimator",
    "Fisher",
    "GaussNewton",
    "Hutchinson",
    "LossName",
    "RefreshInterval",
    "Task",
    "TraceEstimate",
    "block_means",
    "find_logits",
    "hessian",
    "log_shift",
    "recognized",
    "settled",
    "spearman",
    "top_eigenvalues",
    "trace",
    "untouched",
    "view_means",
]
