"""Exchange of weights in pairs at a free pace: threads answer neighbours while the rank computes (AD-PSGD)."""

import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from pliant.algorithms.base import AveragesPairs
from pliant.comm.base import Comm, CommError, duplicate
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.pair_partner import MessageRoom, PairedBucket, Partner
from pliant.engine.parts import BetweenSteps
from pliant.engine.posted_weights import PostedWeights
from pliant.engine.rank_checks import describe_failure
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import WeightPart
from pliant.spec import CodedGossip, Exchange, Gossip, Graph

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

    Note [meetings]: where all ranks must be between the same two exchanges, as for a checkpoint or the end, each stops
    asking, waits for its own exchange, and tells its neighbours that it has come. They tell theirs, so that all hear of
    all, and go on answering until everybody has come. Then no message with weights is under way anywhere. A rank that
    gives no sign of life for the timeout ends the meeting.

    Args:
        key: Key of the state in a checkpoint.
        parts: Buckets, with nodes of the same timing and graph.
        store: State of all parameters.
        comm: Comm of all ranks, for this part alone.
        tracer: Tracer of the run.

    """

    def __init__(
        self, key: str, parts: Sequence[WeightPart], store: AlgorithmState, comm: Comm, tracer: Tracer
    ) -> None:
        self.key, self._parts, self._comm, self._tracer = key, parts, comm, tracer
        node = parts[0].node
        self._timing, core = node.timing, cast(Gossip | CodedGossip, node.core)
        self._bound = core.staleness
        self.rank, self.steps, self.is_open = comm.rank, 0, False
        rules = [
            cast(AveragesPairs, store.algorithms[part.node]).pair_rule(part.bucket.numel, part.state) for part in parts
        ]
        self.buckets = [PairedBucket(PostedWeights(part), rule) for part, rule in zip(parts, rules, strict=True)]
        self._changed = threading.Condition()
        """Guards what follows, and tells of every change."""
        self._meetings = [0] * comm.size
        self._failure: tuple[BaseException, int, bool] | None = None
        self._exchanges = 0
        self._longest_s = self._busy_s = 0.0
        self._steps_apart = 0
        self._rooms: list[MessageRoom] = []
        self._device = parts[0].bucket.flat.device
        self._last = parts[0].last
        self._asked: Partner | None = None
        self._asked_at = 0
        self._over = False
        comms = _connect(core.graph.neighbours(comm.size), comm)
        self._partners = {peer: Partner(peer, own, self, comm.size, self._device) for peer, own in comms.items()}
        self._random = random.Random(comm.rank)  # noqa: S311  not a secret
        self._turn: list[Partner] = []
        tracer.shutdown.add(self)

    # - The training thread

    def reset_reference(self, which: Callable[[str], bool] = lambda _: True) -> None:
        """Begin from the weights, equal on all ranks, in every bucket with a parameter for which `which` is true."""
        for part in self._parts:
            if any(which(span.name) for span in part.bucket.spans):
                part.load()
                part.algorithm.reset_reference(part.bucket, part.state)

    def after_step(self, step: int) -> None:
        """Add what has come, post the new weights, and ask a neighbour if an exchange is due."""
        self._raise_failure()
        self.steps = step
        if not self._partners or step < self._timing.until_step:
            return
        if step == self._timing.until_step:
            self.reset_reference()
        self._wait_if_late(step)
        for bucket in self.buckets:
            bucket.posted.post()
        self._open()
        if step - self._last >= self._timing.period:
            self._ask(step)

    def settle(self, step: int) -> None:
        """Wait until all ranks have come here, and add all that has come. Collective."""
        if not self._partners:
            return
        self.steps = step
        if not self.is_open:
            for bucket in self.buckets:
                bucket.posted.post()
        self._open()
        with describe_failure(f"meeting after step {step}"):
            self._meet()
        for bucket in self.buckets:
            bucket.posted.post()

    def hand_back(self, step: int) -> None:
        """Wait until all ranks have come here, add all that has come, and end the threads. Collective."""
        self.settle(step)
        for partner in self._partners.values():
            partner.say_goodbye()
        self._over = True
        self.join(self._comm.timeout_s)

    def abandon(self) -> None:
        """Tell all neighbours that this rank is lost to them, and close the connections; nothing after `hand_back`."""
        if self._over:
            return
        self._over = True
        with self._changed:
            first = self.rank if self._failure is None else self._failure[1]
        for partner in self._partners.values():
            partner.say_failed(first)
        self.join(_HANG_UP_S)
        self.stop()
        self.join(_HANG_UP_S)

    def close(self) -> None:
        """Free the comms."""
        for partner in self._partners.values():
            partner.close()
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
        norms = [float(torch.stack(part.changed).norm()) for part in self._parts if part.changed]
        return {
            "exchange_s": self._busy_s,
            "consensus_distance": sum(norm**2 for norm in norms) ** 0.5,
            "exchanges_in_pairs": self._exchanges,
            "staleness": self._steps_apart,
        }

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
                f"the state is damaged: {exchanges} exchanges are counted, the last in step {last} of {step}."
            )

    def _open(self) -> None:
        self.is_open = True
        for partner in self._partners.values():
            partner.answer()

    def _ask(self, step: int) -> None:
        """Ask the next neighbour that is free, if this rank's last question is answered, or its grace time is over."""
        if self._asked is not None and not self._asked.is_idle and self._grace_s > 0:
            return
        for _ in self._partners:
            if not self._turn:
                self._turn = list(self._partners.values())
                self._random.shuffle(self._turn)
            partner = self._turn.pop()
            if partner.ask():
                self._asked, self._asked_at, self._last = partner, step, step
                return

    @property
    def _grace_s(self) -> float:
        """Seconds for which the partner that was asked last may still take."""
        since_s = 0.0 if self._asked is None else self._asked.asked_s
        return since_s + _GRACE_S + 3 * self._longest_s - time.monotonic()

    def _wait_if_late(self, step: int) -> None:
        asked = self._asked
        if not self._bound or asked is None or asked.is_idle or step - self._asked_at < self._bound:
            return
        with self._tracer.record_wait(), self._changed:
            self._changed.wait_for(lambda: asked.is_idle or self._failure is not None, max(0.0, self._grace_s))

    def _meet(self) -> None:
        """Wait until all ranks have come (Note [meetings])."""
        began_s = pinged_s = time.monotonic()
        told = False
        with self._changed:
            meeting = self._meetings[self.rank] + 1
        while True:
            self._raise_failure()
            if not told and all(partner.is_idle for partner in self._partners.values()):
                told = True
                with self._changed:
                    self._meetings[self.rank] = meeting
                self._tell_all()
            with self._changed:
                pause_s = min(self._comm.timeout_s / 8, 1.0)
                self._changed.wait_for(lambda told=told: self._has_come_on(meeting, told=told), pause_s)
                if told and min(self._meetings) >= meeting:
                    break
                missing = [peer for peer, partner in self._partners.items() if self._is_missing(peer, partner, meeting)]
            now_s = time.monotonic()
            for peer in missing:
                silent_s = now_s - max(began_s, self._partners[peer].heard_s)
                if silent_s > self._comm.timeout_s:
                    raise self._silent(peer)
            if now_s - pinged_s >= pause_s:
                pinged_s = now_s
                for peer in missing:
                    self._partners[peer].ping()
        self.is_open = False
        self._comm.barrier()

    def _has_come_on(self, meeting: int, *, told: bool) -> bool:
        if self._failure is not None:
            return True
        if told:
            return min(self._meetings) >= meeting
        return all(partner.is_idle for partner in self._partners.values())

    def _is_missing(self, peer: int, partner: Partner, meeting: int) -> bool:
        return self._meetings[peer] < meeting or not partner.is_idle

    def _silent(self, peer: int) -> CommError:
        text = (
            f"rank {self.rank} of {self._comm.size}: rank {peer} has given no sign of life for "
            f"{self._comm.timeout_s:g}s, and a meeting of all ranks needs it; if it was stopped, raise timeout_s"
        )
        return CommError(text, rank=self.rank, op="meet", lost=(peer,))

    def _tell_all(self) -> None:
        for partner in self._partners.values():
            partner.tell()

    def _raise_failure(self) -> None:
        with self._changed:
            if self._failure is None:
                return
            self._changed.wait_for(lambda: self._failure is not None and self._failure[2], _EXPLAIN_S)
            error, first, _ = self._failure
        if not isinstance(error, CommError):
            raise error
        text = (
            f"rank {self.rank} of {self._comm.size}: rank {first} no longer takes part in the exchange of weights in "
            f"pairs: {error}"
        )
        raise CommError(text, rank=self.rank, op="exchange", lost=(first,))

    # - The threads of the partners

    @contextmanager
    def room(self) -> Generator[MessageRoom]:
        """Give memory for a message within the block; as much is made as is in use at once."""
        with self._changed:
            room = self._rooms.pop() if self._rooms else None
        if room is None:
            room = MessageRoom(max(bucket.rule.num_bytes for bucket in self.buckets), self._device)
        yield room
        with self._changed:
            self._rooms.append(room)

    def meetings(self) -> list[int]:
        """Return how many meetings each rank has come to, as far as this one knows."""
        with self._changed:
            return list(self._meetings)

    def learn(self, peer: int, meetings: Sequence[int]) -> None:
        """Hear what a partner knows of the meetings, and tell the others what is new."""
        with self._changed:
            newer = [max(a, b) for a, b in zip(self._meetings, meetings, strict=True)]
            is_news, self._meetings = newer != self._meetings, newer
            self._changed.notify_all()
        if is_news:
            for other, partner in self._partners.items():
                if other != peer:
                    partner.tell()

    def end_exchange(self, seconds: float, steps: int) -> None:
        """Count an exchange with a rank that has made so many steps."""
        with self._changed:
            self._exchanges += 1
            self._longest_s = max(self._longest_s, seconds)
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
    return [PairExchange(f"pairs {k}", held, store, duplicate(comm), tracer) for k, held in enumerate(nodes.values())]


def _connect(neighbours: Sequence[set[int]], comm: Comm) -> dict[int, Comm]:
    """Return a comm for each neighbour of this rank, of these two ranks. Collective."""
    _require_connected(neighbours)
    comms: dict[int, Comm] = {}
    rounds = Graph(kind="round_robin")
    for k in range(rounds.period(comm.size)):
        rows = rounds.mixing(k, comm.size)
        pairs = [sorted({i, j}) for i, row in enumerate(rows) for j in row if i < j and j in neighbours[i]]
        own = comm.split(pairs) if pairs else None
        if own is not None:
            peer = next(i + j - comm.rank for i, j in pairs if comm.rank in (i, j))
            comms[peer] = own
    return comms


def _require_connected(neighbours: Sequence[set[int]]) -> None:
    reached, ahead = {0}, [0]
    while ahead:
        found = neighbours[ahead.pop()] - reached
        reached |= found
        ahead += found
    if apart := sorted(set(range(len(neighbours))) - reached):
        raise ValueError(
            f"the graph leads from rank 0 to ranks {sorted(reached)} only, and never to {apart}, so that their weights "
            "would never come together; use a graph in which every rank is reached."
        )
