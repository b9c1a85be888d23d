"""Recognition of the loss that a model is trained on, from its output and the gradient that has reached it."""

from typing import Literal

import torch
from torch import Tensor

__all__ = ["LossName", "recognize_loss"]

LossName = Literal["cross_entropy", "binary_cross_entropy", "squared_error"]
"""Names of losses: of a softmax over (..., classes); of the sigmoid of each element; of each element."""

_LEAST_EQUATIONS = 4
"""Beyond the unknowns: fewer could hold by chance."""
_TELLING = 8.0
"""Chances that are alike to so many times the rounding are those of other losses too."""


def recognize_loss(outputs: Tensor, gradient: Tensor) -> LossName | Literal["other"] | None:
    """Return the loss whose gradient this is, up to a factor, "other" if it is neither, or None if it cannot be told.

    With softmax p of a row and label y, the cross-entropy's gradient is c (p - (1 - e) e_y - e / classes), where e is
    its label smoothing; with the sigmoid s of an element and label y, 0 or 1, the binary one's is c (s - y). The factor
    c is that of the mean, of accumulation and of a GradScaler. Both are solved for c, and e, by least squares, and hold
    if nothing but rounding is left. Rows that no gradient has reached, such as padding, do not count. A squared error's
    gradient may be anything, since its targets may: it cannot be recognized.

    Args:
        outputs: (rows, classes) or (rows, 1), as the model returned them.
        gradient: Of the same shape and dtype.

    """
    rounding = 4 * torch.finfo(gradient.dtype).eps + 1e-4
    z, g = (x.detach().to("cpu", torch.float64) for x in (outputs, gradient))  # a few rows, and small systems
    reached = (g != 0).any(-1)
    z, g = z[reached], g[reached]
    if not g.numel() or not bool(g.isfinite().all() & z.isfinite().all()):
        return None
    found = [_softmax_fits(z, g, rounding), _sigmoid_fits(z, g, rounding)]
    if found[0]:
        return "cross_entropy"
    if found[1]:
        return "binary_cross_entropy"
    return None if None in found else "other"


def _softmax_fits(z: Tensor, g: Tensor, rounding: float) -> bool | None:
    """Say whether a cross-entropy has this gradient, z and g (rows, classes); None if there are too few numbers."""
    classes = z.shape[1]
    if classes < 2:
        return False
    if z.shape[0] * (classes - 1) < 2 + _LEAST_EQUATIONS:
        return None
    p, label = z.softmax(-1), torch.zeros_like(z)
    if float((p * classes - 1).abs().max()) < _TELLING * rounding:
        return None
    label.scatter_(1, g.argmin(-1, keepdim=True), 1.0)
    # c (p - (1 - e) label - e / classes) = a (p - label) + b (classes p - 1), with a = c (1 - e), b = c e / classes.
    terms = torch.stack([(p - label).flatten(), (classes * p - 1).flatten()], -1)  # (rows * classes, 2)
    found = torch.linalg.lstsq(terms, g.flatten()[:, None], driver="gelsd").solution
    left = float((terms @ found - g.flatten()[:, None]).abs().max() / g.abs().max())
    a, b = (float(x) for x in found)
    return left <= rounding and a > 0 and b >= -rounding * a


def _sigmoid_fits(z: Tensor, g: Tensor, rounding: float) -> bool | None:
    """Say whether a binary cross-entropy of each element has this gradient, z and g of one shape; None as above."""
    reached = g != 0
    if int(reached.sum()) < 1 + _LEAST_EQUATIONS:
        return None
    z, g = z[reached], g[reached]
    if float((2 * z.sigmoid() - 1).abs().max()) < _TELLING * rounding:
        return None
    term = z.sigmoid() - (g < 0).double()
    c = float(term @ g / term.square().sum())
    return c > 0 and float((c * term - g).abs().max() / g.abs().max()) <= rounding
