"""Exchange of weights in pairs at a free pace, with neighbours in a graph (AD-PSGD)."""

import random
import time
from collections.abc import Sequence
from typing import cast

from pliant.comm.base import Comm
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.pair_partner import Partner
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import WeightPart
from pliant.engine.with_partners import WithPartners
from pliant.spec import CodedGossip, Gossip

__all__ = ["PairExchange"]

_GRACE_S = 1.0
"""Time that a partner may take to answer, beside three times the longest exchange, before another one is asked."""


class PairExchange(WithPartners):
    """Exchanges weights with neighbours in a graph, drawn at random without repetition.

    A neighbour that is stopped does not answer: after a grace time others are asked, and it is asked again once it has
    answered. Arguments are those of `WithPartners`, whose neighbours are those of the node's graph.
    """

    def __init__(
        self, key: str, parts: Sequence[WeightPart], store: AlgorithmState, comm: Comm, tracer: Tracer
    ) -> None:
        node = cast(Gossip | CodedGossip, parts[0].node.core)
        self._bound = node.staleness
        self._asked: Partner | None = None
        self._asked_at = 0
        """Step after which this rank has asked last."""
        self._random, self._turn = random.Random(comm.rank), list[Partner]()  # noqa: S311  not a secret
        super().__init__(key, parts, store, comm, tracer, node.graph.neighbours(comm.size))

    def _ask(self, step: int) -> None:
        """Ask the next neighbour that is free, if this rank's last question is answered, or its grace time is over."""
        if self._asked is not None and not self._asked.is_idle and self._grace_left_s(self._asked) > 0:
            return
        for _ in self._partners:
            if not self._turn:
                self._turn = list(self._partners.values())
                self._random.shuffle(self._turn)
            partner = self._turn.pop()
            if partner.ask():
                self._asked, self._asked_at, self._last = partner, step, step
                return

    def _grace_left_s(self, asked: Partner) -> float:
        return asked.asked_s + _GRACE_S + 3 * self._longest_s - time.monotonic()

    def _wait_if_late(self, step: int) -> None:
        """Wait for the exchange that was asked for, if it is as many steps old as the bound, but no longer than due."""
        asked = self._asked
        if not self._bound or asked is None or asked.is_idle or step - self._asked_at < self._bound:
            return
        with self._tracer.record_wait(), self._changed:
            self._changed.wait_for(
                lambda: asked.is_idle or self._failure is not None, max(0.0, self._grace_left_s(asked))
            )
