"""Exchange of changes with servers of regions, and of theirs with the server of all, at a free pace (HALoS)."""

import time
from collections.abc import Sequence
from typing import cast

from pliant.algorithms.executors.region_servers import ServerRule
from pliant.comm.base import Comm
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import WeightPart
from pliant.engine.with_partners import WithPartners
from pliant.spec import RegionServers

__all__ = ["ServerExchange"]


class ServerExchange(WithPartners):
    """Exchanges of ranks with servers, which answer in threads beside their own ranks' training (`ServerRule`).

    A rank asks its region's server. A server's rank tells it its own change between two steps, without a message. The
    server of a region asks that of all once it has taken enough changes, in whichever thread has taken the last. So no
    step waits for another rank. A server that is stopped holds up the exchanges of its region, and rank 0 those of
    regions, but no steps.

    Every message tells how many steps the fastest rank has made, as far as its sender knows. When an exchange ends, a
    slower rank makes its period as much shorter as its own steps are fewer. No clock takes part in it.

    Arguments are those of `WithPartners`, whose neighbours are those of the node.
    """

    def __init__(
        self, key: str, parts: Sequence[WeightPart], store: AlgorithmState, comm: Comm, tracer: Tracer
    ) -> None:
        self._node = node = cast(RegionServers, parts[0].node.core)
        self._serves, self._server_rank = node.serves(comm.rank), node.server_of(comm.rank)
        self._furthest, self._period_now = 0, node.period
        """Most steps of a rank that this one was told of, and the period that followed from it."""
        self._meets = False
        """Whether the training thread waits for a meeting, in which a server asks nothing (Note [meetings])."""
        super().__init__(key, parts, store, comm, tracer, node.neighbours(comm.size))
        self._server = self._partners.get(self._server_rank)
        self._rules = [cast(ServerRule, bucket.rule) for bucket in self.buckets]

    # - The training thread

    def after_step(self, step: int) -> None:
        """Add what has come, post the new weights, and ask the server if the period is over."""
        self._meets = False
        super().after_step(step)

    def settle(self, step: int) -> None:
        """Wait until all ranks have come here, and add all that has come. Collective."""
        with self._changed:
            self._meets = True
        super().settle(step)

    def after_load(self) -> None:
        """Forget how far the fastest rank was, since all may be at an earlier step now."""
        self._furthest, self._period_now = 0, self._node.period

    def explain(self) -> str:
        """Say where this rank's changes go, and what it serves."""
        size, node = self._comm.size, self._node
        if not self._serves:
            return f"Changes go to the server of this region, rank {self._server_rank}."
        ranks, regions = min(node.region_ranks, size - self.rank), -(-size // node.region_ranks)
        beside = f", and all {regions} regions" if self.rank == 0 and regions > 1 else ""
        return f"This rank serves the {ranks} ranks of its region{beside}, and keeps points and momenta for them."

    @property
    def _is_alone(self) -> bool:
        return self._comm.size == 1 and self._node.region.takes_mean

    @property
    def _period(self) -> int:
        return self._period_now

    def _ask(self, step: int) -> None:
        if self._serves:
            began_s = time.perf_counter()
            for bucket, rule in zip(self.buckets, self._rules, strict=True):
                with bucket.posted.turn():
                    bucket.posted.part.require_finite(step)
                    bucket.posted.correct(rule.serve_own(bucket.posted.flat))
            self._post()
            self._last = step
            self.note(time.perf_counter() - began_s)
            self._push()
        elif self._server is not None and self._server.ask():
            self._last = step

    # - Any thread

    @property
    def told_steps(self) -> int:
        """Steps of the fastest rank that this one knows of."""
        return max(self._furthest, self.steps)

    def end_exchange(self, steps: int) -> None:
        """Tell all who wait, and ask the server of all if an exchange with it is due."""
        with self._changed:
            self._furthest = max(self.told_steps, steps)
            if self._node.scaled:
                self._period_now = max(1, -(-self._node.period * self.steps // self._furthest))
        super().end_exchange(self._furthest)
        self._push()

    def _push(self) -> None:
        """Ask the server of all regions, if that of this rank is due to, and nobody waits for a meeting.

        With the lock, so that nothing is asked once this rank has come to a meeting.
        """
        with self._changed:
            due = self._serves and not self._meets and all(rule.is_due for rule in self._rules)
            if due and self._server is not None:
                self._server.ask()
