"""Ranks that train alone for a while, then exchange how far they have come."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pliant.algorithms.allreduce import AllReduce
from pliant.algorithms.base import Algorithm, Moment, Rest, Slots, State
from pliant.algorithms.quantized import Quantized
from pliant.algorithms.sparse import Sparse
from pliant.algorithms.timing import After
from pliant.buckets import Bucket
from pliant.codecs import Int4, TopK
from pliant.comm.base import Comm
from pliant.spec import Choice, Outer

__all__ = ["Local", "async_average", "diloco", "local_sgd", "post_local_sgd", "sparse_loco", "streaming_diloco"]


@dataclass(frozen=True, kw_only=True)
class Local:
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

    inner: Algorithm
    """How the changes are averaged."""
    period: int
    outer: Outer = field(default_factory=Outer)
    stretch: float = 0.0
    fragments: int = 1
    delay_steps: int = 0
    free: bool = False
    """Exchange whenever the network is free and a period has passed, each rank at the step it is in."""
    weighted: bool = False
    """Weigh each rank by the steps it has made since the last exchange."""

    @property
    def choice(self) -> Choice:
        """The inner choice, of changes."""
        return replace(
            self.inner.choice,
            what="change",
            every=self.period,
            outer=self.outer,
            stretch=self.stretch,
            fragments=self.fragments,
            delay_steps=self.delay_steps,
            pace="free" if self.free else "lockstep",
            weighted=self.weighted,
        )

    def slots(self, shape: tuple[int, ...], comm: Comm) -> Slots:
        """Where all set out, the outer momentum, and the inner slots."""
        slots: Slots = {"anchor": None, **self.inner.slots(shape, comm)}
        return {**slots, "momentum": None} if self.outer.momentum else slots

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
        self.inner.on_ready(bucket, state, comm, moment)
        if self.outer.momentum:
            momentum = state.flat["momentum"].mul_(self.outer.momentum).add_(change)
            change.add_(momentum, alpha=self.outer.momentum)
        anchor.sub_(change, alpha=self.outer.lr)
        change.copy_(anchor)
        return None


def local_sgd(period: int = 8, *, stretch: float = 0.0, delay_steps: int = 0) -> Local:
    """Average weights every `period` steps, and use the mean `delay_steps` steps later.

    With a delay the exchange runs beside the next steps, and what they do is kept: DaSGD (Zhou et al.,
    arXiv:2006.00441). ``local_sgd(1, delay_steps=1)`` sends as much as exact averaging and hides it behind a whole
    step, as `late` does, but a rank's own gradient is never late: only the others' are.
    """
    return Local(inner=AllReduce(), period=period, stretch=stretch, delay_steps=delay_steps)


def async_average(period: int = 1, *, averaging: Algorithm | None = None) -> Local:
    """Average weights in the background; slow ranks count for less.

    No rank waits for an exchange before its next step, but each exchange begins with all ranks: a slow rank makes them
    as rare for all, and one that has stopped ends all after the timeout.
    """
    return Local(inner=averaging or AllReduce(), period=period, free=True, weighted=True)


def post_local_sgd(warmup_steps: int, period: int = 8) -> After:
    """Exact averaging of gradients at first, then local SGD (Lin et al., arXiv:1808.07217)."""
    return After(num_steps=warmup_steps, first=AllReduce(), then=local_sgd(period))


def diloco(
    period: int = 32, *, outer_lr: float = 0.7, outer_momentum: float = 0.9, averaging: Algorithm | None = None
) -> Local:
    """DiLoCo, in full precision or with any algorithm that averages: ``diloco(averaging=pliant.int4())``."""
    outer = Outer(lr=outer_lr, momentum=outer_momentum)
    return Local(inner=averaging or AllReduce(), period=period, outer=outer)


def streaming_diloco(period: int = 32, *, fragments: int = 4, delay_steps: int = 2) -> Local:
    """DiLoCo in fragments, in 4 bits, beside the training: Streaming DiLoCo."""
    inner = Quantized(codec=Int4(), feedback="both")
    outer = Outer(lr=0.7, momentum=0.9)
    return Local(inner=inner, period=period, outer=outer, fragments=fragments, delay_steps=delay_steps)


def sparse_loco(period: int = 16, *, ratio: float = 0.03) -> Local:
    """Top-k of the changes with error feedback, and no outer momentum (SparseLoCo, Sarfi et al., arXiv:2508.15706)."""
    return Local(inner=Sparse(codec=TopK(ratio=ratio)), period=period, outer=Outer())
