"""Exact inside a host, relaxed between hosts."""

from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from pliant.algorithms.base import Algorithm, MixesWeights, Moment, Rest, Slots, State
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.comm.hierarchical import levels_of
from pliant.spec import Choice

__all__ = ["BetweenHosts", "between_hosts"]


@dataclass(frozen=True, kw_only=True)
class BetweenHosts:
    """Sum inside each host, let one rank per host run the algorithm with the others, broadcast inside.

    Gradients of hosts of unequal size are weighted so that the result estimates the mean over ranks, not over hosts.
    Where weights are exchanged, gradients are averaged inside the host in every step, so that its ranks stay equal,
    and one of them speaks for the host.
    """

    inner: Algorithm

    @property
    def choice(self) -> Choice:
        """The inner choice, hierarchical."""
        inner = self.inner.choice
        before = replace(inner.before, hierarchical=True) if inner.before else None
        return replace(inner, hierarchical=True, before=before)

    def slots(self, shape: tuple[int, ...], comm: Comm) -> Slots:
        """The inner algorithm's slots on the rank that leads its host."""
        outer = levels_of(comm).outer
        return {} if outer is None else self.inner.slots(shape, outer)

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Prepare the inner algorithm on the rank that leads its host."""
        outer = levels_of(comm).outer
        return None if outer is None else (self.inner.prepare(bucket, outer),)

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> Rest | None:
        """Go up, across and down; or, where weights are exchanged, stay in the host."""
        levels = levels_of(comm)
        if self.choice.between_steps and moment.step >= self.choice.until_step:
            levels.inner.all_reduce(bucket.flat.mul_(1 / levels.inner.size)).wait()
            return None
        rests: list[Rest | None] = []

        def between(x: Tensor, outer: Comm) -> None:
            del x  # it is bucket.flat, which the inner algorithm works on
            rests.append(self.inner.on_ready(bucket, _leaders(state), outer, moment))

        levels.average(bucket.flat, between)
        return rests[0] if rests else None

    def follow(self, bucket: Bucket, state: State) -> None:
        """Let the leader begin from these weights."""
        if state.workspace is not None:
            cast(MixesWeights, self.inner).follow(bucket, _leaders(state))

    def mix(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> Rest | None:
        """Let leaders mix, and give the result to the host."""
        levels, rest = levels_of(comm), None
        if levels.outer is not None:
            rest = cast(MixesWeights, self.inner).mix(bucket, _leaders(state), levels.outer, moment)
        levels.inner.broadcast(bucket.flat, 0).wait()
        return rest


def _leaders(state: State) -> State:
    return replace(state, workspace=state.workspace[0])


def between_hosts(algorithm: Algorithm) -> BetweenHosts:
    """Run an algorithm between hosts, and exact sums inside them.

    Raises:
        ValueError: The algorithm is between hosts already, or has owners.

    """
    if isinstance(algorithm, BetweenHosts):
        raise ValueError(
            "between_hosts() was given an algorithm that is between hosts already, but there are two levels only: "
            "hosts, and the network between them; leave one between_hosts() out."
        )
    if algorithm.choice.collective == "owner":
        raise ValueError(
            "between_hosts() was given an owner algorithm, but owners hold parts of the optimizer for all ranks, not "
            "for hosts; use owner() by itself, or an algorithm without owners between hosts."
        )
    return BetweenHosts(inner=algorithm)
