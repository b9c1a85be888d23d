"""Exact inside a host, relaxed between hosts."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pliant.algorithms.base import Algorithm, Moment, Slots, State
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.spec import Choice

__all__ = ["BetweenHosts", "between_hosts"]


@dataclass(frozen=True, kw_only=True)
class BetweenHosts:
    """Sum inside each host, let one rank per host run the algorithm with the others, broadcast inside.

    Hosts of unequal size are weighted so that the result estimates the mean over ranks, not over hosts.
    """

    inner: Algorithm

    @property
    def choice(self) -> Choice:
        """The inner choice, hierarchical."""
        inner = self.inner.choice
        before = replace(inner.before, hierarchical=True) if inner.before else None
        return replace(inner, hierarchical=True, before=before)

    def slots(self, shape: tuple[int, ...]) -> Slots:
        """The inner algorithm's slots; ranks that do not lead their host leave them zero."""
        return self.inner.slots(shape)

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm on the rank that leads its host."""
        outer = _two_levels(comm).outer
        return None if outer is None else self.inner.prepare(bucket, outer)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Go up, across and down."""

        def between(x: Tensor, outer: Comm) -> None:
            del x  # it is bucket.flat, which the inner algorithm works on
            self.inner.on_ready(bucket, state, outer, moment)

        _two_levels(comm).average(bucket.flat, between)


def _two_levels(comm: Comm) -> HierarchicalComm:
    if not isinstance(comm, HierarchicalComm):
        raise TypeError(f"a hierarchical algorithm needs to know the hosts, but got a {type(comm).__name__}.")
    return comm


def between_hosts(algorithm: Algorithm) -> BetweenHosts:
    """Run an algorithm between hosts, and exact sums inside them."""
    return BetweenHosts(inner=algorithm)
