"""Exchange of weights in pairs at a free pace: threads answer neighbours while the rank computes (AD-PSGD)."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from pliant.algorithms.base import AveragesPairs
from pliant.comm.base import Comm, CommError, duplicate
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.meetings import Meetings
from pliant.engine.pair_buckets import MessageRooms, PairedBucket
from pliant.engine.pair_comms import pair_comms
from pliant.engine.pair_partner import Partner
from pliant.engine.posted_weights import PostedWeights
from pliant.engine.rank_checks import describe_failure
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import BetweenSteps, WeightPart, change_norm
from pliant.spec import CodedGossip, Exchange, Gossip

__all__ = ["PairExchange", "pair_exchanges"]

_GRACE_S = 1.0
"""Time that a partner may take to answer, beside three times the longest exchange, before another one is asked."""
_EXPLAIN_S = 1.0
"""Time for which a rank with a broken connection listens for the rank that failed first."""
_HANG_UP_S = 1.0
"""Time for which a rank that ends with an error lets its last messages go out."""


class PairExchange(BetweenSteps):
    """Exchanges the weights of one node in pairs, at a free pace.

    After its own step, when its period is over, a rank asks a neighbour, drawn at random without repetition, and goes
    on. The exchange is carried out by the threads of both (`Partner`) on posted weights (Note [posted weights]), and
    what it changes is added between two steps. So a rank that computes for long still answers. One that is stopped
    does not: after a grace time others are asked, and it is asked again once it has answered. One whose connection
    breaks is lost: every rank raises CommError with its number at the next step; an elastic run goes on without it.

    Args:
        key: Key of the state in a checkpoint.
        parts: Buckets of one node.
        store: State of all parameters.
        comm: Comm of all ranks, for this part alone.
        tracer: Tracer of the run.

    """

    def __init__(
        self, key: str, parts: Sequence[WeightPart], store: AlgorithmState, comm: Comm, tracer: Tracer
    ) -> None:
        super().__init__(parts)
        self.key, self._comm, self._tracer = key, comm, tracer
        node = cast(Gossip | CodedGossip, parts[0].node.core)
        self._timing, self._bound = parts[0].node.timing, node.staleness
        self.rank, self.steps, self.is_open = comm.rank, 0, False
        algorithm = cast(AveragesPairs, store.algorithms[parts[0].node])
        rules = [algorithm.pair_rule(part.bucket.numel, part.state) for part in parts]
        self.buckets: Sequence[PairedBucket] = [
            PairedBucket(PostedWeights(part), rule) for part, rule in zip(parts, rules, strict=True)
        ]
        self.rooms = MessageRooms(self.buckets)
        self._changed = threading.Condition()
        """Guards what follows, and tells of every change."""
        self._failure: tuple[BaseException, int, bool] | None = None
        """Error, the rank that failed first, and whether that is what a rank has told."""
        self._exchanges = self._steps_apart = 0
        self._longest_s = self._busy_s = 0.0
        self._over = False
        self._meetings = Meetings(comm, self._changed, self._raise_failure)
        self._last = parts[0].last
        self._asked: Partner | None = None
        self._asked_at = 0
        """Step after which this rank has asked last."""
        self._random, self._turn = random.Random(comm.rank), list[Partner]()  # noqa: S311  not a secret
        comms = pair_comms(node.graph, comm)
        self._partners = {peer: Partner(peer, own, self, comm.size) for peer, own in comms.items()}
        self._meetings.partners = self._partners
        tracer.shutdown.add(self)

    # - The training thread

    def after_step(self, step: int) -> None:
        """Add what has come, post the new weights, and ask a neighbour if an exchange is due."""
        self._raise_failure()
        self.steps = step
        if not self._partners or step < self._timing.until_step:
            return
        if step == self._timing.until_step:
            self.reset_reference()
        self._wait_if_late(step)
        self._post()
        self._open()
        if step - self._last >= self._timing.period:
            self._ask(step)

    def settle(self, step: int) -> None:
        """Wait until all ranks have come here, and add all that has come. Collective."""
        if not self._partners:
            return
        self.steps = step
        if not self.is_open:
            self._post()
            self._open()
        with describe_failure(f"meeting after step {step}"):
            try:
                self._meetings.come()
            except CommError as error:  # one that is silent; the others are told of it, not of this rank
                self.fail(error, first=error.lost[0], is_told=True)
                raise
            self.is_open = False
            self._comm.barrier()
        self._post()

    def hand_back(self, step: int) -> None:
        """Wait until all ranks have come here, add all that has come, and end the threads. Collective."""
        self.settle(step)
        self._over = True
        for partner in self._partners.values():
            partner.say_goodbye()
        self.join(self._comm.timeout_s)

    def abandon(self) -> None:
        """Tell all neighbours that this rank is lost to them, and close the connections; nothing after `hand_back`."""
        if self._over:
            return
        self._over = True
        first = self.rank if self._failure is None else self._failure[1]
        for partner in self._partners.values():
            partner.say_failed(first)
        self.join(_HANG_UP_S)
        self.stop()
        self.join(_HANG_UP_S)

    def close(self) -> None:
        """Free the comms, once the threads have ended."""
        for partner in self._partners.values():
            partner.channel.close()
        self._comm.close()

    def stop(self) -> None:
        """Close the connections, which ends the threads. Takes no lock and waits for nobody."""
        self._over = True
        for partner in self._partners.values():
            partner.hang_up()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end."""
        deadline_s = time.monotonic() + timeout_s
        for partner in self._partners.values():
            partner.join(max(0.0, deadline_s - time.monotonic()))

    def stats(self) -> dict[str, float]:
        """Return counts and times of exchanges, and the norm of what the last ones have changed."""
        return {
            "exchange_s": self._busy_s,
            "consensus_distance": change_norm(self._parts),
            "exchanges_in_pairs": self._exchanges,
            "staleness": self._steps_apart,
        }

    def exchanges_with(self, rank: int) -> int:
        """Return how many exchanges with a rank there were since the run, or its plan, has begun."""
        return self._partners[rank].num_exchanges if rank in self._partners else 0

    @property
    def state(self) -> dict[str, Tensor]:
        """Exchanges that this rank has taken part in, and the step of the last one it has asked for, int64 (2,)."""
        return {"counters": torch.tensor([self._exchanges, self._last], dtype=torch.int64)}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        self._exchanges, self._last = saved["counters"].tolist()

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        exchanges, last = saved["counters"].tolist()
        if exchanges < 0 or last > step:
            raise ValueError(
                f"the state is damaged: {exchanges} exchanges in pairs are counted, the last in step {last} of {step}."
            )

    def _post(self) -> None:
        for bucket in self.buckets:
            bucket.posted.post()

    def _open(self) -> None:
        self.is_open = True
        for partner in self._partners.values():
            partner.answer()

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

    def _raise_failure(self) -> None:
        with self._changed:
            if self._failure is None:
                return
            self._changed.wait_for(lambda: self._failure is not None and self._failure[2], _EXPLAIN_S)
            error, first, _ = self._failure
        if not isinstance(error, CommError):
            raise error
        me, size = self.rank, self._comm.size
        text = f"rank {me} of {size}: rank {first} no longer takes part in exchanges of weights in pairs: {error}"
        raise CommError(text, rank=me, op="exchange", lost=(first,))

    # - The threads of the partners

    @property
    def known(self) -> tuple[int, ...]:
        """Meetings that each rank has come to, as far as this one knows."""
        return self._meetings.counts

    def learn(self, peer: int, meetings: Sequence[int]) -> None:
        """Hear what a partner knows of the meetings."""
        self._meetings.learn(peer, meetings)

    def end_exchange(self, seconds: float, steps: int) -> None:
        """Count an exchange with a rank that has made so many steps."""
        with self._changed:
            self._exchanges += 1
            self._longest_s = max(self._longest_s, min(seconds, self._comm.timeout_s))
            self._steps_apart = abs(steps - self.steps)
            self._changed.notify_all()

    def note(self, seconds: float) -> None:
        """Count time in which weights were coded and added up."""
        with self._changed:
            self._busy_s += seconds

    def fail(self, error: BaseException, *, first: int, is_told: bool) -> None:
        """Keep the first failure, for the training thread; what a partner tells goes before a connection that broke."""
        with self._changed:
            if not self._over and (self._failure is None or (is_told and not self._failure[2])):
                self._failure = error.with_traceback(None), first, is_told
            self._changed.notify_all()


def pair_exchanges(
    parts: Sequence[WeightPart], store: AlgorithmState, comm: Comm, tracer: Tracer
) -> list[PairExchange]:
    """Make the exchanges of all nodes whose ranks meet in pairs, each over connections of its own. Collective."""
    nodes: dict[Exchange, list[WeightPart]] = {}
    for part in parts:
        nodes.setdefault(part.node, []).append(part)
    return [PairExchange(f"pairs {k}", own, store, duplicate(comm), tracer) for k, own in enumerate(nodes.values())]
