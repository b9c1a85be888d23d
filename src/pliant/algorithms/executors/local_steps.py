"""Ranks that train alone for a while, then exchange how far they have come."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from pliant.algorithms.base import Algorithm, Deferred, State, StateSpec, StepContext, prefix_slots
from pliant.algorithms.executors.outer_step import outer_slots, step_momentum
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import LocalSteps

__all__ = ["LocalStepsExecutor"]


@dataclass(frozen=True)
class LocalStepsExecutor:
    """Local steps for a period; then an outer optimizer takes the mean change of the weights.

    Stich, local SGD (arXiv:1805.09767), is outer lr 1 without momentum; Douillard et al., DiLoCo (arXiv:2311.08105,
    Algorithm 1), is Nesterov momentum, with D the mean over ranks, by any averaging algorithm and codec:

        D <- mean(theta - x_i);  m <- mu m + D;  theta <- theta - lr (D + mu m);  x_i <- theta

    A plain momentum (`nesterov=False`) ends with theta <- theta - lr m. As m does not hold lr, both lr and mu may
    change along the training. Where the momentum makes a step in every N-th round only (Liu et al., delayed Nesterov,
    arXiv:2401.09135), each change is used at once, and their sum then:

        s <- s + D;  theta <- theta - lr D;  every N-th:  m <- mu m + s;  theta <- theta - lr mu m;  s <- 0

    The paper divides each arrival g by N; here lr is that of a whole round of all ranks, N times as much.
    In fragments, parts of the model are exchanged at different steps of the period. With a delay, the exchange runs
    beside the next steps, whose progress is added to theta (Douillard et al., Streaming DiLoCo, arXiv:2501.18512,
    sections 2.2 and 2.3, which blends the two instead). `stretch` lets the period grow as the learning rate falls:
    every max(H, (stretch / lr)^2) steps (Gu et al., Quadratic Synchronization Rule, arXiv:2310.14423). Bytes per step:
    those of the averaging algorithm, divided by H. Memory: theta, m if mu is not 0, and s if N is not 1.
    """

    prefix: ClassVar[str] = "averaging/"
    node: LocalSteps
    inner: Algorithm
    """Carries out the averaging."""

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """The starting point of all ranks, the outer momentum, and the inner slots."""
        inner = prefix_slots(self.prefix, self.inner.slots(shape, comm))
        return {"anchor": None, **inner, **outer_slots(self.node.outer)}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare what averages the changes."""
        return self.inner.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Leave gradients as they are."""

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Set out from here."""
        state.flat["anchor"].copy_(bucket.flat)

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> Deferred | None:
        """Exchange how far this rank has come, and set out anew."""
        change, anchor, outer = bucket.flat, state.flat["anchor"], self.node.outer
        torch.sub(anchor, change, out=change)
        if context.share != 1:
            change.mul_(context.share)
        its = state.part(self.prefix, state.workspace)
        if self.node.averaging.needs_anchor:
            its = replace(its, flat={**its.flat, "anchor": anchor})
        rest = self.inner.on_ready(bucket, its, comm, context)
        is_due = context.is_due and (context.round + 1) % outer.every == 0
        step_momentum(outer, change, state.flat, step=context.step, is_due=is_due)
        anchor.sub_(change, alpha=outer.lr_at(context.step))
        change.copy_(anchor)
        return rest

    def gather_momentum(self, bucket: Bucket, state: State, context: StepContext) -> None:
        """Let the momentum take how far equal weights have come, and set out from here."""
        anchor = state.flat["anchor"]
        mu = self.node.outer.momentum_at(context.step)
        state.flat["momentum"].mul_(mu).add_(anchor.sub_(bucket.flat))
        anchor.copy_(bucket.flat)
