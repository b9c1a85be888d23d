"""Exchange of momenta by their differences to what all ranks know of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import Algorithm, State, StateSpec, StepContext
from pliant.algorithms.executors.ratio_state import check_single_momentum
from pliant.buckets import Bucket
from pliant.codecs import all_finite, finite_flag, keep_unless
from pliant.comm.base import Comm
from pliant.spec import MomentumDifferences

__all__ = ["MomentumDifferencesExecutor"]


@dataclass(frozen=True)
class MomentumDifferencesExecutor:
    """Let every rank send what all do not know yet of its momentum; what all know of the mean is the result.

    Gruntkowska et al., EF21-Muon (arXiv:2510.00643), Algorithm 3, for a rank i:

        M_i <- mu M_i + (1 - mu) g_i            its momentum
        R_i <- C(M_i - G_i);  G_i <- G_i + R_i  what all know of it
        G   <- G + mean of R_i                  the optimizer makes G orthogonal, and steps

    All begin at 0, which all know, so that G_0 = C(M_0) without a message before. A node of gradients carries C with
    error feedback: what it keeps, e_i, is M_i - G_i, so that it is given what M_i has moved by, (1 - mu) (g_i - M_i),
    and sends C(e_i + that). Where it codes its mean as well, the owner keeps that error; the paper codes the model's
    moves there. With no codec G is the mean momentum, and on one rank its own. With `nesterov` the result is G + mu
    times what G has just moved by: without a codec mu G + (1 - mu) mean g, as of torch's Muon. Under SGD without
    momentum this is EF21-SGDM (Fatkhullin et al., arXiv:2305.15155). Bytes: those of the averaging. Memory: momentum,
    estimate and what the averaging keeps; one bucket more.
    """

    node: MomentumDifferences
    averaging: Algorithm

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The momentum, what all know of the mean, and the averaging's slots."""
        return {"momentum": None, "estimate": None, **self.averaging.slots(shape, comm)}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the place for what a momentum has moved by, and prepare the averaging."""
        room = torch.empty(bucket.numel, dtype=torch.float32, device=bucket.flat.device)
        return room, self.averaging.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Let the momentum follow the gradient, average its moves, and add them to the estimate."""
        moved, workspace = state.workspace
        ahead = self.node.momentum if self.node.nesterov else 0.0
        g, m, known = bucket.flat, state.flat["momentum"], state.flat["estimate"]
        moved.copy_(g.sub_(m).mul_(1 - self.node.momentum))
        if comm.size > 1:
            self.averaging.on_ready(bucket, replace(state, workspace=workspace), comm, context)
        # All ranks see an overflow on any, and skip the step: then no momentum has moved, and nothing is known of it.
        if is_accelerator(g.device):
            finite = finite_flag(g)
            keep_unless(finite, m, m + moved)
            keep_unless(finite, known, known + g)
            keep_unless(finite, g, torch.add(known, g, alpha=ahead))
        elif all_finite(g):
            m.add_(moved)
            known.add_(g)
            torch.add(known, g, alpha=ahead, out=g)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a second momentum in the optimizer."""
        check_single_momentum(self.node.momentum, optimizer)
