"""Ranks that train alone for a while, then exchange how far they have come."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from pliant.algorithms.base import Algorithm, Moment, Rest, Slots, State, prefixed
from pliant.algorithms.given import AlgorithmLike, node_of
from pliant.algorithms.quantized import int4
from pliant.algorithms.sparse import topk
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import After, AllReduce, Exchange, LocalSteps, Outer

__all__ = [
    "LocalStepsExecutor",
    "async_average",
    "diloco",
    "local_sgd",
    "post_local_sgd",
    "sparse_loco",
    "streaming_diloco",
]


@dataclass(frozen=True)
class LocalStepsExecutor:
    """H steps alone; then the mean change of the weights is taken by an outer optimizer, from where all set out.

    Stich, local SGD (arXiv:1805.09767), is outer lr 1 without momentum; Douillard et al., DiLoCo (arXiv:2311.08105,
    Algorithm 1), is Nesterov momentum, with D the mean over ranks, by any averaging algorithm and codec:

        D <- mean(theta - x_i);  m <- mu m + D;  theta <- theta - lr (D + mu m);  x_i <- theta

    In fragments, parts of the model take turns within the period; with a delay, the exchange runs beside the next
    steps, whose progress is added to theta (Douillard et al., Streaming DiLoCo, arXiv:2501.18512, sections 2.2 and
    2.3, which blends the two instead). `stretch` lets the period grow as the learning rate falls: every
    max(H, (stretch / lr)^2) steps (Gu et al., Quadratic Synchronization Rule, arXiv:2310.14423).
    Bytes per step: those of the averaging algorithm, divided by H. Memory: theta, and m if mu is not 0.
    """

    prefix: ClassVar[str] = "averaging/"
    node: LocalSteps
    inner: Algorithm
    """Carries out the averaging."""

    def slots(self, shape: tuple[int, ...], comm: Comm) -> Slots:
        """Where all set out, the outer momentum, and the inner slots."""
        slots: Slots = {"anchor": None, **prefixed(self.prefix, self.inner.slots(shape, comm))}
        return {**slots, "momentum": None} if self.node.outer.momentum else slots

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the averaging."""
        return self.inner.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> Rest | None:
        """Gradients stay."""

    def follow(self, bucket: Bucket, state: State) -> None:
        """Set out from here."""
        state.flat["anchor"].copy_(bucket.flat)

    def mix(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> Rest | None:
        """Exchange how far this rank has come, and set out anew."""
        change, anchor = bucket.flat, state.flat["anchor"]
        torch.sub(anchor, change, out=change)
        if moment.share != 1:
            change.mul_(moment.share)
        rest = self.inner.on_ready(bucket, state.part(self.prefix, state.workspace), comm, moment)
        outer = self.node.outer
        if outer.momentum:
            momentum = state.flat["momentum"].mul_(outer.momentum).add_(change)
            change.add_(momentum, alpha=outer.momentum)
        anchor.sub_(change, alpha=outer.lr)
        change.copy_(anchor)
        return rest


def local_sgd(
    period: int = 8, *, stretch: float = 0.0, delay_steps: int = 0, averaging: AlgorithmLike | None = None
) -> LocalSteps:
    """Average weights every `period` steps, and use the mean `delay_steps` steps later.

    With a delay the exchange runs beside the next steps, and what they do is kept: DaSGD (Zhou et al.,
    arXiv:2006.00441). ``local_sgd(1, delay_steps=1)`` sends as much as exact averaging and hides it behind a whole
    step, as `late` does, but a rank's own gradient is never late: only the others' are.
    """
    return LocalSteps(period=period, averaging=_averaging(averaging), stretch=stretch, delay_steps=delay_steps)


def async_average(period: int = 1, *, averaging: AlgorithmLike | None = None) -> LocalSteps:
    """Average weights in the background; slow ranks count for less.

    No rank waits for an exchange before its next step, but each exchange begins with all ranks: a slow rank makes them
    as rare for all, and one that has stopped ends all after the timeout.
    """
    return LocalSteps(period=period, averaging=_averaging(averaging), pace="free", weighted=True)


def post_local_sgd(warmup_steps: int, period: int = 8) -> After:
    """Exact averaging of gradients at first, then local SGD (Lin et al., arXiv:1808.07217)."""
    return After(steps=warmup_steps, first=AllReduce(), then=local_sgd(period))


def diloco(
    period: int = 32, *, outer_lr: float = 0.7, outer_momentum: float = 0.9, averaging: AlgorithmLike | None = None
) -> LocalSteps:
    """DiLoCo, in full precision or with any algorithm that averages: ``diloco(averaging=pliant.int4())``."""
    outer = Outer(lr=outer_lr, momentum=outer_momentum)
    return LocalSteps(period=period, averaging=_averaging(averaging), outer=outer)


def streaming_diloco(period: int = 32, *, fragments: int = 4, delay_steps: int = 2) -> LocalSteps:
    """DiLoCo in fragments, in 4 bits, beside the training: Streaming DiLoCo."""
    outer = Outer(lr=0.7, momentum=0.9)
    return LocalSteps(period=period, averaging=int4(), outer=outer, fragments=fragments, delay_steps=delay_steps)


def sparse_loco(period: int = 16, *, ratio: float = 0.03) -> LocalSteps:
    """Top-k of the changes with error feedback, and no outer momentum (SparseLoCo, Sarfi et al., arXiv:2508.15706)."""
    return LocalSteps(period=period, averaging=topk(ratio))


def _averaging(given: AlgorithmLike | None) -> Exchange:
    return AllReduce() if given is None else node_of(given)
