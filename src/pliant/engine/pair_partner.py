"""One neighbour of a rank that exchanges weights in pairs: a connection, and the thread that listens to it."""

import contextlib
import threading
import time
import zlib
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from pliant.accelerator import finish_copies, is_accelerator, new_stream, pinned
from pliant.collectives.pair_average import PairRule
from pliant.comm.base import Comm, CommError, Work
from pliant.engine.messages import wait_for
from pliant.engine.posted_weights import PostedWeights

__all__ = ["MessageRoom", "PairedBucket", "PairsHost", "Partner"]

_IDLE_S = 365 * 86400.0
"""Longest wait for a partner: one that is stopped may come back; one whose connection breaks ends the wait."""

_ASK, _GO, _DATA, _TELL, _PING, _BYE, _FAIL = range(7)
"""Kinds of messages. Each begins with a head, int64 (5 + size,): kind, number, steps, of `_FAIL` the rank that failed
first, heads that the sender has received; then how many meetings each rank has come to. Only `_DATA` has a body."""


class PairedBucket:
    """A bucket that is exchanged in pairs.

    Args:
        posted: Its weights.
        rule: The rule by which two ranks average it.

    """

    def __init__(self, posted: PostedWeights, rule: PairRule) -> None:
        self.posted, self.rule = posted, rule
        self.hash = zlib.crc32(posted.part.bucket.name.encode())


class MessageRoom:
    """Memory for the body of one message, on the device of the weights and in host memory; on a CPU it is the same.

    Args:
        num_bytes: Bytes of the longest message.
        device: Device of the weights.

    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._on_host = pinned(num_bytes, torch.uint8, device)
        self._on_device = (
            torch.empty(num_bytes, dtype=torch.uint8, device=device) if is_accelerator(device) else self._on_host
        )

    def of(self, num_bytes: int) -> tuple[Tensor, Tensor]:
        """Return the first bytes of both, uint8 (num_bytes,)."""
        message = self._on_host[:num_bytes]
        return message if self._on_device is self._on_host else self._on_device[:num_bytes], message


class PairsHost(Protocol):
    """Protocol of the part of a run whose neighbours these are; its calls come from the partners' threads."""

    rank: int
    steps: int
    """Steps that this rank has made."""
    is_open: bool
    """Whether partners may be answered; not between a meeting and the next step."""

    @property
    def buckets(self) -> Sequence[PairedBucket]:
        """Buckets, in the same order on all ranks."""
        ...

    def room(self) -> AbstractContextManager[MessageRoom]:
        """Give memory for a message within a block."""
        ...

    def meetings(self) -> list[int]:
        """Return how many meetings each rank has come to, as far as this one knows."""
        ...

    def learn(self, peer: int, meetings: Sequence[int]) -> None:
        """Hear what a partner knows of the meetings."""
        ...

    def end_exchange(self, seconds: float, steps: int) -> None:
        """Count an exchange with a rank that has made so many steps."""
        ...

    def note(self, seconds: float) -> None:
        """Count time in which weights were coded and added up."""
        ...

    def fail(self, error: BaseException, *, first: int, is_told: bool) -> None:
        """Hear that a rank is lost; `is_told` by a partner, or that its connection broke here."""
        ...


class Partner:
    """A neighbour, with a connection and a thread of its own. Rank a asks rank b, at any time:

        a: ask  ->  b: go  ->  a: what the rule says, bucket by bucket  ->  b: its answer to each

    The thread of each side sends and adds up; the training threads go on. Weights are read when they are sent, not when
    the question is asked, so that a partner that was stopped in between never gets or gives old ones. Each message has
    the number of its exchange, as its sender counts them.

    Note [two that ask at once]: where both have asked before either has answered, the lower rank leads, and the
    question of the other counts as its answer. Messages between two ranks keep their order, so both see it alike.
    Nobody waits while it holds a lock, so ranks that ask each other in a circle do not wait for each other either.

    Args:
        peer: Number of the neighbour.
        comm: A comm of these two ranks.
        host: The part of the run.
        size: Ranks of the run.
        device: Device of the weights.

    """

    def __init__(self, peer: int, comm: Comm, host: PairsHost, size: int, device: torch.device) -> None:
        self.peer, self._comm, self._host, self._size = peer, comm, host, size
        self._far, self._device = 1 - comm.rank, device
        self._lock = threading.RLock()  # guards the state, and keeps what is sent together
        self._state = "idle"
        self._deferred = False
        """Whether the neighbour has asked, and is answered after this rank's next step."""
        self._number = 0
        self._sent: deque[Work] = deque()
        """Heads on their way, of which the neighbour has not said that it has received them."""
        self._num_sent = self._num_heard = 0
        self._head = torch.zeros(5 + size, dtype=torch.int64)
        self.asked_s = self.heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"pliant-pair-{peer}", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether no exchange with this neighbour is under way or asked for by this rank."""
        return self._state == "idle"

    # - The training thread

    def ask(self) -> bool:
        """Ask for an exchange, unless one is under way; return whether this has asked."""
        with self._lock:
            if self._state != "idle" or self._deferred:
                return False
            self._state, self.asked_s = "asked", time.monotonic()
            return self._send_safely(_ASK)

    def answer(self) -> None:
        """Answer a question that came while nobody was to be answered."""
        with self._lock:
            if self._deferred:
                self._deferred, self._state = False, "busy"
                self._send_safely(_GO)

    def tell(self) -> None:
        """Send what this rank knows of the meetings."""
        self._send_safely(_TELL)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._send_safely(_PING)

    def say_goodbye(self) -> None:
        """Say that this rank sends nothing any more."""
        self._send_safely(_BYE)

    def say_failed(self, first: int) -> None:
        """Say that this rank ends because a rank has failed: itself, or another."""
        self._send_safely(_FAIL, first=first)

    def hang_up(self) -> None:
        """Close the connection. Takes no lock and waits for nobody."""
        self._comm.hang_up()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Free the comm, once the thread has ended."""
        self._comm.close()

    # - The thread that listens

    def _run(self) -> None:
        stream = new_stream(self._device)
        try:
            with stream or contextlib.nullcontext():
                while self._listen():
                    pass
        except CommError as error:
            began = self.peer if not error.lost or self.peer in error.lost else error.lost[0]
            self._host.fail(error, first=began, is_told=isinstance(error, _ToldError))
        except BaseException as error:  # noqa: BLE001  whatever it is, the training thread raises it
            self._host.fail(error, first=self._host.rank, is_told=True)
        for work in self._sent:
            wait_for(work)

    def _listen(self) -> bool:
        """Hear the next message and do what it asks for; return whether another may come."""
        kind = self._hear(_ASK, _GO, _DATA, _BYE)
        if kind == _ASK:
            with self._lock:
                crossing = self._state == "asked"
                if crossing or self._host.is_open:
                    self._state = "busy"
                else:
                    self._deferred = True
                if self._host.is_open and not crossing:
                    self._send(_GO)
            if crossing and self._host.rank < self.peer:
                self._lead()
        elif kind == _GO:
            self._lead()
        elif kind == _DATA:
            self._follow()
        return kind != _BYE

    def _lead(self) -> None:
        """Carry out an exchange as the rank that begins."""
        began_s = time.monotonic()
        with self._host.room() as room:
            for bucket in self._host.buckets:
                made, message = room.of(bucket.rule.num_bytes)
                with self._at_work(bucket):
                    bucket.posted.part.require_finite(self._host.steps)
                    bucket.rule.ask(self.peer, bucket.posted.flat, made, self._seed(bucket))
                self._send_body(made, message)
                self._hear(_DATA)
                self._receive_body(message, made)
                with self._at_work(bucket):
                    bucket.posted.correct(bucket.rule.take(self.peer, made))
        self._finish(began_s)

    def _follow(self) -> None:
        """Carry out an exchange as the rank that answers; the head of the first message has come."""
        began_s = time.monotonic()
        with self._host.room() as room:
            for k, bucket in enumerate(self._host.buckets):
                if k:
                    self._hear(_DATA)
                made, message = room.of(bucket.rule.num_bytes)
                self._receive_body(message, made)
                with self._at_work(bucket):
                    bucket.posted.part.require_finite(self._host.steps)
                    bucket.posted.correct(bucket.rule.answer(self.peer, bucket.posted.flat, made, self._seed(bucket)))
                self._send_body(made, message)
        self._finish(began_s)

    def _finish(self, began_s: float) -> None:
        steps = int(self._head[2])
        with self._lock:
            self._state = "idle"
            self._number += 1
        self._host.end_exchange(time.monotonic() - began_s, steps)

    def _hear(self, *kinds: int) -> int:
        """Return the kind of the next message that is one of these; hear the others on the way."""
        while True:
            self._comm.exchange([], [(self._far, self._head)], patience_s=_IDLE_S).wait()
            self.heard_s = time.monotonic()
            self._num_heard += 1
            kind, number, _, first, received, *meetings = self._head.tolist()
            if kind == _FAIL:
                raise _ToldError(
                    f"rank {self.peer} has ended, since rank {first} no longer takes part",
                    rank=self._host.rank,
                    op="exchange",
                    lost=(first,),
                )
            self._host.learn(self.peer, meetings)
            self._let_go(received)
            if kind == _PING:
                self._send(_TELL)
            elif kind in kinds:
                if kind == _DATA and number != self._number:
                    raise self._error(f"it sent a part of its exchange {number} in exchange {self._number}")
                return kind
            elif kind != _TELL:
                raise self._error(f"a message of kind {kind} came where one of {kinds} was due")

    def _let_go(self, received: int) -> None:
        """Let go of the heads that the neighbour has received. One is on its way until it is: Gloo keeps no copies."""
        with self._lock:
            while len(self._sent) > self._num_sent - received:
                self._sent.popleft().wait()

    def _send_safely(self, kind: int, *, first: int = -1) -> bool:
        """Send a head; if the connection is broken, its thread finds out as well, and says so."""
        try:
            self._send(kind, first=first)
        except CommError:
            return False
        return True

    def _send(self, kind: int, *, first: int = -1, body: Tensor | None = None) -> None:
        meetings = self._host.meetings()
        with self._lock:
            numbers = [kind, self._number, self._host.steps, first, self._num_heard, *meetings]
            head = torch.tensor(numbers, dtype=torch.int64)
            self._num_sent += 1
            self._sent.append(self._comm.exchange([(self._far, head)], [], patience_s=_IDLE_S))
            if body is None:
                return
            work = self._comm.exchange([(self._far, body)], [], patience_s=_IDLE_S)
        work.wait()

    def _send_body(self, made: Tensor, message: Tensor) -> None:
        if made is not message:
            message.copy_(made, non_blocking=True)
            finish_copies(self._device)
        self._send(_DATA, body=message)

    def _receive_body(self, message: Tensor, made: Tensor) -> None:
        self._comm.exchange([], [(self._far, message)], patience_s=_IDLE_S).wait()
        if made is not message:
            made.copy_(message, non_blocking=True)
            finish_copies(self._device)

    @contextlib.contextmanager
    def _at_work(self, bucket: PairedBucket) -> Generator[None]:
        began_s = time.perf_counter()
        with bucket.posted.turn():
            yield
        self._host.note(time.perf_counter() - began_s)

    def _seed(self, bucket: PairedBucket) -> int:
        return ((self._number << 32) | bucket.hash) + self._host.rank

    def _error(self, why: str) -> CommError:
        me = self._host.rank
        text = f"rank {me} of {self._size}: rank {self.peer} is out of step: {why}. Let all ranks run the same Pliant."
        return CommError(text, rank=me, op="exchange", lost=(self.peer,))


class _ToldError(CommError):
    """A partner has said which rank failed first."""
