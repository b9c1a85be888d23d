"""Servers in two tiers that take changes of weights as they come: one of each region, and one of all regions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext, prefix_slots
from pliant.algorithms.executors.outer_step import outer_slots, step_momentum
from pliant.buckets import Bucket
from pliant.collectives.pair_average import PairRule
from pliant.comm.base import Comm
from pliant.spec import Outer, RegionServers

__all__ = ["RegionServersExecutor", "ServedPoint", "ServerRule"]


@dataclass(frozen=True)
class RegionServersExecutor:
    """Each rank sends changes to its region's server, which sends what they have come to on to the server of all.

    Kim et al., HALoS (arXiv:2506.04531), as its authors' code has it (utnslab/halos). Rank i set out from theta_i and
    is at x_i; the server of region r is at p_r, and was at q_r when it last heard of all regions, whose server is at g:

        rank i, after h steps:      sends D = theta_i - x_i
        server of r, on D:          p_r <- N(p_r, D), and sends p_r back; after each K of them it sends q_r - p_r
        rank i, on p_r:             x_i <- p_r + what it has done since it sent;  theta_i <- p_r
        server of all, on that:     g <- N'(g, q_r - p_r), and sends g back
        server of r, on g:          p_r <- (1 - alpha) p_r + alpha g;  q_r <- p_r

    N and N' are delayed Nesterov (Liu et al., arXiv:2401.09135), as in `LocalStepsExecutor`; the authors divide a
    change by N and multiply the rate by it. What comes to p_r between a region's change and the answer to it stays in
    p_r, and is in no later change of the region, as in their code. Here a rank goes on while its change is under way,
    and theirs waits. The first rank of a region is its server, and rank 0 that of all, beside their own training; what
    they tell themselves is no message. With one region there is no second tier.

    Bytes per period of a rank: 4 N to its server and as many back; per K changes of a region: the same between servers.
    Memory: theta_i and what was sent; on a server p_r, its momentum and what that has not taken, and q_r; at g alike.
    """

    node: RegionServers

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return where a rank set out; on servers their points, what optimizers keep, and what was merged last."""
        node = self.node
        slots: dict[str, tuple[int, ...] | None] = {"anchor": None}
        if node.serves(comm.rank):
            slots |= prefix_slots("region/", {"point": None, **outer_slots(node.region)})
            if comm.size > node.region_ranks:
                slots["merged"] = None
                if comm.rank == 0:
                    slots |= prefix_slots("world/", {"point": None, **outer_slots(node.world)})
        return slots

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return nothing, since the rule has what there is."""

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Leave gradients as they are."""

    def reset_reference(self, bucket: Bucket, state: State) -> None:
        """Let ranks and servers set out from these weights, and momenta go on from what they have taken."""
        for slot, kept in state.flat.items():
            if slot in ("anchor", "merged") or slot.endswith("/point"):
                kept.copy_(bucket.flat)
            elif slot.endswith("/gathered"):
                kept.zero_()

    def exchange_weights(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Leave weights as they are, since a `ServerRule` exchanges them between two ranks."""

    def pair_rule(self, numel: int, state: State) -> PairRule:
        """Return what a rank says to a server, and what a server makes of it."""
        return ServerRule(self.node, numel, state)


class ServedPoint:
    """Point of a server, which changes step as they arrive.

    Args:
        outer: Its optimizer.
        state: Its slots.

    """

    def __init__(self, outer: Outer, state: State) -> None:
        self.point, self.arrivals = state.flat["point"], 0
        self._outer, self._kept = outer, state.flat

    def take(self, change: Tensor) -> Tensor:
        """Step by a change, float32 (numel,), which is used up, and return the point."""
        self.arrivals += 1
        step_momentum(self._outer, change, self._kept, step=0, is_due=self.arrivals % self._outer.every == 0)
        return self.point.sub_(change, alpha=self._outer.lr)


class ServerRule:
    """Exchange of a rank with its region's server, or of a region's with that of all: a change, and a point back.

    A server's own vector stays as it is. Its calls come within turns of the bucket (Note [posted weights]), which guard
    the points as well. Bytes: 4 N each way.

    Args:
        node: The node.
        numel: N, elements of each vector.
        state: Slots of this rank.

    """

    def __init__(self, node: RegionServers, numel: int, state: State) -> None:
        self.num_bytes = 4 * numel
        self._node, self._anchor, self._merged = node, state.flat["anchor"], state.flat.get("merged")
        self._buffer = torch.empty_like(self._anchor)
        """Weights that were sent, until the answer comes; on a server, its rank's own change."""
        points = {
            tier: ServedPoint(outer, state.part(f"{tier}/", None))
            for tier, outer in (("region", node.region), ("world", node.world))
            if f"{tier}/point" in state.flat
        }
        self._region, self._world = points.get("region"), points.get("world")
        self._pushed = 0
        """Changes that the region's server had taken when it heard of all regions."""

    @property
    def is_due(self) -> bool:
        """Whether the region's server is to ask that of all regions."""
        return (
            self._region is not None
            and self._merged is not None
            and self._region.arrivals - self._pushed >= self._node.arrivals
        )

    @property
    def counts(self) -> Sequence[int]:
        """Changes that the region's server has taken, of them those that all regions know of, and at that of all."""
        taken = [0 if served is None else served.arrivals for served in (self._region, self._world)]
        return [taken[0], self._pushed, taken[1]]

    @counts.setter
    def counts(self, saved: Sequence[int]) -> None:
        region, self._pushed, world = saved
        for served, arrivals in ((self._region, region), (self._world, world)):
            if served is not None:
                served.arrivals = arrivals

    def ask(self, peer: int, x: Tensor, message: Tensor, seed: int) -> None:
        change = message.view(torch.float32)
        if self._region is None:
            torch.sub(self._anchor, self._buffer.copy_(x), out=change)
        else:
            torch.sub(cast(Tensor, self._merged), self._region.point, out=change)

    def answer(self, peer: int, x: Tensor, message: Tensor, seed: int) -> None:
        change = message.view(torch.float32)
        if self._node.serves(peer):
            change.copy_(cast(ServedPoint, self._world).take(change))
        else:
            change.copy_(self._arrive(change))

    def take(self, peer: int, message: Tensor) -> Tensor | None:
        point = message.view(torch.float32)
        if self._region is not None:
            self._merge(point)
            return None
        self._anchor.copy_(point)
        return point.sub_(self._buffer)

    def serve_own(self, x: Tensor) -> Tensor:
        """Let the server take the change of its rank, at x, float32 (numel,); return the rank's correction."""
        point = self._arrive(torch.sub(self._anchor, x, out=self._buffer))
        self._anchor.copy_(point)
        return torch.sub(point, x, out=self._buffer)

    def _arrive(self, change: Tensor) -> Tensor:
        """Let the region's server take a change; beside the server of all regions it asks that at once."""
        served = cast(ServedPoint, self._region)
        served.take(change)
        if self._world is not None and self.is_due:
            self._merge(self._world.take(torch.sub(cast(Tensor, self._merged), served.point, out=change)))
        return served.point

    def _merge(self, everywhere: Tensor) -> None:
        served = cast(ServedPoint, self._region)
        served.point.lerp_(everywhere, self._node.pull)
        cast(Tensor, self._merged).copy_(served.point)
        self._pushed = served.arrivals
