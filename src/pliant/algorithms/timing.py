"""When: every n-th step, or something else at first. Both exist once, for all algorithms."""

from dataclasses import dataclass, replace
from typing import Any

from pliant.algorithms.base import Algorithm, Moment, Slots, State
from pliant.buckets import Bucket
from pliant.codecs import all_finite
from pliant.comm.base import Comm
from pliant.spec import Choice

__all__ = ["After", "Every", "after", "every"]


@dataclass(frozen=True, kw_only=True)
class Every:
    """Exchange in every n-th step only.

    In the steps between, gradients are gathered and the optimizer sees zeros, so that ranks stay equal; the n-th
    step exchanges their sum. Nothing is lost: sum of what is applied + what is pending = sum of the means.
    """

    period: int
    inner: Algorithm

    @property
    def choice(self) -> Choice:
        """The inner choice with a period."""
        return replace(self.inner.choice, every=self.period)

    def slots(self, shape: tuple[int, ...]) -> Slots:
        """What is pending, and the inner algorithm's slots."""
        return {"pending": None, **self.inner.slots(shape)}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm."""
        return self.inner.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Gather, or add what was gathered and exchange."""
        g, pending = bucket.flat, state.flat["pending"]
        if (moment.step + 1) % self.period:
            if all_finite(g):
                pending.add_(g)
                g.zero_()
            return  # an overflow stays in g for this rank's scaler or the engine's check to see
        g.add_(pending)
        self.inner.on_ready(bucket, state, comm, moment)
        if all_finite(g):
            pending.zero_()


@dataclass(frozen=True, kw_only=True)
class After:
    """Do `first` in the steps before `num_steps`, and `then` from there on: the one warm-up."""

    num_steps: int
    first: Algorithm
    then: Algorithm

    @property
    def choice(self) -> Choice:
        """The later choice, with the first before it."""
        return replace(self.then.choice, before=self.first.choice, until_step=self.num_steps)

    def slots(self, shape: tuple[int, ...]) -> Slots:
        """Both sets of slots, those of the first under a prefix."""
        return {**{f"first/{k}": v for k, v in self.first.slots(shape).items()}, **self.then.slots(shape)}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare both."""
        return self.first.prepare(bucket, comm), self.then.prepare(bucket, comm)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Hand over to the one whose time it is."""
        first_workspace, then_workspace = state.workspace
        if moment.step < self.num_steps:
            self.first.on_ready(bucket, state.part("first/", first_workspace), comm, moment)
        else:
            self.then.on_ready(bucket, replace(state, workspace=then_workspace), comm, moment)


def every(period: int, algorithm: Algorithm) -> Every:
    """Exchange in every `period`-th step."""
    return Every(period=period, inner=algorithm)


def after(num_steps: int, first: Algorithm, *, then: Algorithm) -> After:
    """Use `first` for `num_steps` steps, `then` afterwards."""
    return After(num_steps=num_steps, first=first, then=then)
