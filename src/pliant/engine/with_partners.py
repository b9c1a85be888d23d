"""Exchanges of weights by two ranks at a time, at a free pace: threads answer partners while the rank computes."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from pliant.algorithms.base import AveragesPairs
from pliant.comm.base import Comm, CommError
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.meetings import Meetings
from pliant.engine.pair_buckets import MessageRooms, PairedBucket
from pliant.engine.pair_comms import pair_comms
from pliant.engine.pair_partner import Partner
from pliant.engine.posted_weights import PostedWeights
from pliant.engine.rank_checks import describe_failure
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import BetweenSteps, WeightPart, change_norm

__all__ = ["WithPartners"]

_EXPLAIN_S = 1.0
"""Time for which a rank with a broken connection listens for the rank that failed first."""
_HANG_UP_S = 1.0
"""Time for which a rank that ends with an error lets its last messages go out."""


class WithPartners(BetweenSteps, ABC):
    """Base of exchanges of one node's weights by two ranks at a time.

    After its own step, when its period is over, a rank asks a partner, and goes on. The exchange is carried out by the
    threads of both (`Partner`) on posted weights (Note [posted weights]), and what it changes is added between two
    steps. So a rank that computes for long still answers. One whose connection breaks is lost: every rank raises
    CommError with its number at the next step; an elastic run goes on without it.

    Args:
        key: Key of the state in a checkpoint.
        parts: Buckets of one node.
        store: State of all parameters.
        comm: Comm of all ranks, for this part alone.
        tracer: Tracer of the run.
        neighbours: Partners of each rank.

    """

    def __init__(
        self,
        key: str,
        parts: Sequence[WeightPart],
        store: AlgorithmState,
        comm: Comm,
        tracer: Tracer,
        neighbours: Sequence[set[int]],
    ) -> None:
        super().__init__(parts)
        self.key, self._comm, self._tracer = key, comm, tracer
        self._timing = parts[0].node.timing
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
        self._partners = {
            peer: Partner(peer, own, self, comm.size) for peer, own in pair_comms(neighbours, comm).items()
        }
        self._meetings.partners = self._partners
        tracer.shutdown.add(self)

    # - The training thread

    def after_step(self, step: int) -> None:
        """Add what has come, post the new weights, and ask a partner if an exchange is due."""
        self._raise_failure()
        self.steps = step
        if self._is_alone or step < self._timing.until_step:
            return
        if step == self._timing.until_step:
            self.reset_reference()
            self._last = step
        self._wait_if_late(step)
        self._post()
        self._open()
        if step - self._last >= self._period:
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
        """Exchanges that this rank has taken part in, the step of the last one it has asked for, and rules' counts."""
        counts = [count for bucket in self.buckets for count in bucket.rule.counts]
        return {"counters": torch.tensor([self._exchanges, self._last, *counts], dtype=torch.int64)}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        self._exchanges, self._last, *counts = saved["counters"].tolist()
        for bucket in self.buckets:
            num = len(bucket.rule.counts)
            bucket.rule.counts, counts = counts[:num], counts[num:]

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        exchanges, last, *counts = saved["counters"].tolist()
        if min(exchanges, *counts, 0) < 0 or last > step:
            raise ValueError(
                f"the state is damaged: {exchanges} exchanges in pairs are counted, the last in step {last} of {step}, "
                f"and their rules have counted {counts}."
            )

    @property
    def _is_alone(self) -> bool:
        """Whether there is nobody to exchange with."""
        return not self._partners

    @property
    def _period(self) -> int:
        """Steps from one question of this rank to the next."""
        return self._timing.period

    def _wait_if_late(self, step: int) -> None:
        """Wait for an exchange that takes too long; for none, unless a node has a bound."""

    @abstractmethod
    def _ask(self, step: int) -> None:
        """Ask a partner for an exchange, if one may be asked."""

    def _post(self) -> None:
        for bucket in self.buckets:
            bucket.posted.post()

    def _open(self) -> None:
        self.is_open = True
        for partner in self._partners.values():
            partner.answer()

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
    def told_steps(self) -> int:
        """Steps that this rank has made."""
        return self.steps

    @property
    def known(self) -> tuple[int, ...]:
        """Meetings that each rank has come to, as far as this one knows."""
        return self._meetings.counts

    def learn(self, peer: int, meetings: Sequence[int]) -> None:
        """Hear what a partner knows of the meetings."""
        self._meetings.learn(peer, meetings)

    def count_exchange(self, seconds: float) -> None:
        """Count an exchange that is over, but for the word of it."""
        with self._changed:
            self._exchanges += 1
            self._longest_s = max(self._longest_s, min(seconds, self._comm.timeout_s))

    def end_exchange(self, steps: int) -> None:
        """Tell all who wait that an exchange is over, with a rank that tells of so many steps."""
        with self._changed:
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
