"""Decoupled momentum: ranks share the largest coefficients of their momenta, and keep the others."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.codecs import Dct, all_finite, codec_from, finite_flag, keep_unless
from pliant.collectives.sparse import SparseAverage
from pliant.comm.base import Comm
from pliant.spec import DecoupledMomentum

__all__ = ["DecoupledMomentumExecutor"]


@dataclass(frozen=True)
class DecoupledMomentumExecutor:
    """Take the largest cosine coefficients out of each rank's own momentum, and step by their mean.

    Peng, Quesnelle, Kingma, DeMo (arXiv:2411.19870), Algorithm 1:

        m <- beta m + g                 each rank its own, never averaged
        q <- C(m)                       the k largest DCT coefficients of each block of 64 elements
        m <- m - q                      what is sent is taken out; the rest decays and comes later
        g <- sign(mean q)               or, with signed False, mean q; the optimizer is plain SGD

    The paper transforms tiles of each matrix, and averages a coefficient over the ranks that sent it; here blocks are
    flat, and the mean is over all ranks. Bytes: (n-1) payloads in and out, each 5 k / block per element (to 4 bytes).
    All of the optimizer's own momenta must be 0. With `signed` every element moves by lr in every step: the rate is
    Adam's rather than SGD's, and whatever scales ``p.grad`` afterwards (GradScaler, clipping by norm) changes the rate.
    """

    node: DecoupledMomentum

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The momentum.

        It is no residual: gradients in it have decayed, and count up to 1 / (1 - beta) times. So a switch of plan
        ends it, as it does 1-bit Adam's, and adds nothing of it to a later gradient.
        """
        return {"momentum": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make the exchange, and the place for its result."""
        device = bucket.flat.device
        codec = cast(Dct, codec_from(self.node.codec))
        room = torch.empty(bucket.numel, dtype=torch.float32, device=device)
        return SparseAverage(codec, bucket.numel, comm, device), room

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Accumulate, exchange, take out."""
        exchange, mean = state.workspace
        g, m = bucket.flat, state.flat["momentum"]
        g.add_(m, alpha=self.node.momentum)
        exchange(mean, g, context.seed)
        # All ranks see an overflow on any, and skip the step: then none takes anything into its momentum, or out of it.
        if is_accelerator(mean.device):
            self._take_if_finite(exchange, mean, g, m)
        elif all_finite(mean):
            m.copy_(g)
            exchange.clear_sent(m)
            if self.node.signed:
                mean.sign_()
        g.copy_(mean)

    def _take_if_finite(self, exchange: SparseAverage, mean: Tensor, g: Tensor, m: Tensor) -> None:
        """Do the same without waiting to know whether the mean is finite."""
        finite = finite_flag(mean)
        exchange.clear_sent(g)
        keep_unless(finite, m, g)
        if self.node.signed:
            keep_unless(finite, mean, mean.sign())

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a second momentum in the optimizer."""
        own = max((float(group.get("momentum", 0.0)) for group in optimizer.param_groups), default=0.0)
        if own:
            raise ValueError(
                f"the optimizer has momentum {own} and decoupled_momentum keeps one of {self.node.momentum} "
                "itself, so it would count twice; give the optimizer momentum 0."
            )
