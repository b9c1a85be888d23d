"""Feel how the loss curves, while a model trains. No communication here: sums over ranks are the caller's."""

from pliant.curvature.estimators import Estimator, Fisher, GaussNewton
from pliant.curvature.hessian import Hutchinson, hessian
from pliant.curvature.losses import LossName, recognize_loss
from pliant.curvature.objective import LossObjective, find_logits, output_in, preserved_state
from pliant.curvature.refresh import RefreshInterval, log_shift, spearman
from pliant.curvature.spectrum import TraceEstimate, hessian_trace, top_eigenvalues
from pliant.curvature.structure import block_means, shrink_and_clip, view_means

__all__ = [
    "Estimator",
    "Fisher",
    "GaussNewton",
    "Hutchinson",
    "LossName",
    "LossObjective",
    "RefreshInterval",
    "TraceEstimate",
    "block_means",
    "find_logits",
    "hessian",
    "hessian_trace",
    "log_shift",
    "output_in",
    "preserved_state",
    "recognize_loss",
    "shrink_and_clip",
    "spearman",
    "top_eigenvalues",
    "view_means",
]
