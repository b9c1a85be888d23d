"""Few elements, chosen by each rank: top-k with momentum correction as in Deep Gradient Compression."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.algorithms.executors.ratio_state import check_single_momentum, ramp_ratio
from pliant.buckets import Bucket
from pliant.codecs import BlockTopK, ChunkTopK, TopK, all_finite, codec_from, finite_flag, keep_unless
from pliant.collectives.sparse import SparseAverage
from pliant.comm.base import Comm
from pliant.spec import AllGather

__all__ = ["AllGatherExecutor"]


@dataclass(frozen=True)
class AllGatherExecutor:
    """Send the largest accumulated elements (or blocks); keep the others for later steps.

    Lin et al., Deep Gradient Compression (arXiv:1712.01887), section 3:

        u <- m u + g                    momentum correction (with m = 0, u = g and only v is kept)
        v <- d v + u                    d = `decay`, 1 in the paper; SparseLoCo's (arXiv:2508.15706) is 0.95
        send v at the k largest |v|; there v <- 0 and u <- 0 (momentum factor masking)

    The ratio falls to its final value over `ramp_steps` in factors of 4 (25 %, 6.25 %, ...). Bytes: (n-1) payloads in,
    each 8 bytes per selected element. With momentum correction the optimizer's own momentum must be 0.
    """

    node: AllGather

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The residual v and, with momentum correction, the velocity u."""
        return {"residual": None, "velocity": None} if self.node.momentum else {"residual": None}

    def ratio_at(self, step: int) -> float:
        """Return the share of elements sent in a step."""
        return ramp_ratio(self.node.codec.setting("ratio"), step, self.node.ramp_steps)

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return the exchanges by ratio; each is made when its stage of the ramp begins."""
        exchanges: dict[float, SparseAverage] = {}
        return exchanges

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Accumulate, choose, exchange, mask."""
        for _ in self.stages(bucket, state, comm, context):
            pass

    def stages(
        self, bucket: Bucket, state: State, comm: Comm, context: StepContext, *, prescaled: bool = False
    ) -> Generator[None]:
        """Accumulate, choose and send; take what has come, and mask. On an accelerator all is one stage."""
        if comm.size == 1 and not self.node.momentum:  # as of one host: nothing travels, so that nothing is left behind
            return
        ratio, ratio_setting = context.ratio(self.ratio_at(context.step), self.node.ramp_steps), context.ratio_setting
        exchange = state.workspace.get(ratio)
        if exchange is None:
            state.workspace.clear()
            codec = replace(cast(TopK | BlockTopK | ChunkTopK, codec_from(self.node.codec)), ratio=ratio)
            exchange = state.workspace[ratio] = SparseAverage(codec, bucket.numel, comm, bucket.flat.device)
        g, v, decay = bucket.flat, state.flat["residual"], self.node.decay
        if is_accelerator(g.device):
            self._on_device(exchange, g, state, context, ratio)
            return
        finite = all_finite(g)
        if finite and self.node.momentum:
            u = state.flat["velocity"]
            u.mul_(self.node.momentum).add_(g)
            torch.add(u, v, alpha=decay, out=v)
        elif finite:
            torch.add(g, v, alpha=decay, out=v)
        # An overflowed gradient poisons everyone's result but must not enter what is kept.
        whole = _square(v) if finite and ratio_setting is not None else None
        yield from exchange.stages(g, v if finite else g, context.seed)
        if finite:
            exchange.clear_sent(v)
            if ratio_setting is not None and whole is not None:
                ratio_setting.report(ratio, _square(v), whole)
            if self.node.momentum:
                exchange.clear_sent(state.flat["velocity"])

    def _on_device(self, exchange: SparseAverage, g: Tensor, state: State, context: StepContext, ratio: float) -> None:
        """Do the same without waiting to know whether g is finite."""
        finite, v = finite_flag(g), state.flat["residual"]
        velocity = state.flat["velocity"] * self.node.momentum + g if self.node.momentum else g
        owed = torch.add(velocity, v, alpha=self.node.decay)
        whole = _square(owed) if context.ratio_setting is not None else None
        exchange(g, torch.where(finite, owed, g, out=g), context.seed)
        exchange.clear_sent(owed)
        keep_unless(finite, v, owed)
        if context.ratio_setting is not None and whole is not None:
            nothing = torch.zeros_like(whole)
            left = torch.where(finite, _square(owed), nothing)
            context.ratio_setting.report(ratio, left, torch.where(finite, whole, nothing))
        if self.node.momentum:
            exchange.clear_sent(velocity)
            keep_unless(finite, state.flat["velocity"], velocity)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse a second momentum in the optimizer."""
        check_single_momentum(self.node.momentum, optimizer)


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x).square()
