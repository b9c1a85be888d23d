"""One neighbour of a rank that exchanges weights in pairs, and the thread that listens to it."""

import contextlib
import queue
import threading
import time
from collections.abc import Generator

import torch
from torch import Tensor

from pliant.accelerator import finish_copies, new_stream
from pliant.comm.base import Comm, CommError
from pliant.engine.pair_buckets import PairedBucket, PairsHost
from pliant.engine.pair_channel import Head, PairChannel

__all__ = ["Partner"]

_ASK, _GO, _DATA, _TELL, _PING, _BYE, _FAIL = range(7)
"""Kinds of messages; only `_DATA` has a body."""


class Partner:
    """A neighbour, with a connection and a thread of its own. Rank a asks rank b, at any time:

        a: ask  ->  b: go  ->  a: what the rule says, bucket by bucket  ->  b: its answer to each

    The thread of each side sends and adds up; the training threads go on. Weights are read when they are sent, not when
    the question is asked, so that a partner that was stopped in between never gets or gives old ones. Each message has
    the number of its exchange, so that none is taken for one of another.

    Note [two that ask at once]: where both have asked before either has answered, the lower rank leads, and the
    question of the other counts as its answer. Messages between two ranks keep their order, so both see it alike.
    Nobody waits while it holds a lock, so ranks that ask each other in a circle do not wait for each other either.

    Args:
        peer: Number of the neighbour.
        comm: A comm of these two ranks.
        host: The part of the run.
        size: Ranks of the run.

    """

    def __init__(self, peer: int, comm: Comm, host: PairsHost, size: int) -> None:
        self.peer, self._host, self._size = peer, host, size
        self.channel = PairChannel(comm, size)
        self._device: torch.device = host.buckets[0].posted.flat.device
        self._lock = threading.RLock()
        """Guards what follows, and lets what is sent agree with it."""
        self._state = "idle"
        """One of: idle; asked, by this rank; busy, with an exchange; over, after goodbye."""
        self._deferred = False
        """Whether the neighbour has asked, and is answered after this rank's next step."""
        self._number = 0
        self.asked_s = 0.0
        """Time of this rank's last question, on the clock of `time.monotonic`."""
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()  # a finalizer may put; an Event's lock may be held
        """Word that this rank sends nothing any more."""
        self._thread = threading.Thread(target=self._run, name=f"pliant-pair-{peer}", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether no exchange with this neighbour is under way, or asked for by this rank."""
        return self._state == "idle"

    @property
    def num_exchanges(self) -> int:
        """Exchanges with this neighbour so far."""
        return self._number

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
        """Ask for an answer, whatever it is."""
        self._send_safely(_PING)

    def say_goodbye(self) -> None:
        """Say that this rank sends nothing any more."""
        self._send_safely(_BYE)
        self._ended.put(None)

    def say_failed(self, first: int) -> None:
        """Say that this rank ends because a rank has failed: itself, or another."""
        self._send_safely(_FAIL, first=first)
        self._ended.put(None)

    def hang_up(self) -> None:
        """Close the connection. Takes no lock and waits for nobody."""
        self.channel.hang_up()
        self._ended.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    # - The thread that listens

    def _run(self) -> None:
        stream = new_stream(self._device)
        try:
            with stream or contextlib.nullcontext():
                while self._listen():
                    pass
            self._ended.get()
        except CommError as error:
            began = self.peer if not error.lost or self.peer in error.lost else error.lost[0]
            self._host.fail(error, first=began, is_told=isinstance(error, _ToldError))
        except BaseException as error:  # noqa: BLE001  whatever it is, the training thread raises it
            self._host.fail(error, first=self._host.rank, is_told=True)
        self.channel.drain()

    def _listen(self) -> bool:
        """Hear the next message and do what it asks for; return whether another may come."""
        head = self._hear(_ASK, _GO, _DATA, _BYE)
        if head.kind == _ASK:
            with self._lock:
                if self._state == "over":
                    return True
                crossing = self._state == "asked"
                self._deferred = not crossing and not self._host.is_open
                self._state = "idle" if self._deferred else "busy"
                if self._state == "busy" and not crossing:
                    self._send(_GO)
            if crossing and self._host.rank < self.peer:
                self._lead()
        elif head.kind == _GO:
            self._lead()
        elif head.kind == _DATA:
            self._follow(head.steps)
        return head.kind != _BYE

    def _lead(self) -> None:
        """Carry out an exchange as the rank that begins."""
        began_s, steps = time.monotonic(), 0
        with self._host.rooms.take() as room:
            for bucket in self._host.buckets:
                made, message = room.of(bucket.rule.num_bytes)
                with self._at_work(bucket):
                    bucket.posted.part.require_finite(self._host.steps)
                    bucket.rule.ask(self.peer, bucket.posted.flat, made, self._seed(bucket))
                self._send_body(made, message)
                steps = self._hear(_DATA).steps
                self._receive_body(message, made)
                with self._at_work(bucket):
                    bucket.posted.correct(bucket.rule.take(self.peer, made))
        self._finish(time.monotonic() - began_s, steps)

    def _follow(self, steps: int) -> None:
        """Carry out an exchange as the rank that answers; the head of the first message has come, with these steps."""
        began_s = time.monotonic()
        with self._host.rooms.take() as room:
            for k, bucket in enumerate(self._host.buckets):
                if k:
                    steps = self._hear(_DATA).steps
                made, message = room.of(bucket.rule.num_bytes)
                self._receive_body(message, made)
                with self._at_work(bucket):
                    bucket.posted.part.require_finite(self._host.steps)
                    x = bucket.posted.flat
                    bucket.posted.correct(bucket.rule.answer(self.peer, x, made, self._seed(bucket)))
                self._send_body(made, message)
        self._finish(time.monotonic() - began_s, steps)

    def _finish(self, seconds: float, steps: int) -> None:
        self._host.count_exchange(seconds)  # before this rank is idle, and all may meet
        with self._lock:
            self._state = "over" if self._state == "over" else "idle"
            self._number += 1
        self._host.end_exchange(steps)

    def _hear(self, *kinds: int) -> Head:
        """Return the next message that is of one of these kinds; do on the way what others ask for."""
        while True:
            head = self.channel.hear()
            if head.kind == _FAIL:
                me, first = self._host.rank, head.first
                text = f"rank {self.peer} has ended, since rank {first} no longer takes part"
                raise _ToldError(text, rank=me, op="exchange", lost=(first,))
            self._host.learn(self.peer, head.meetings)
            if head.kind == _PING:
                self.tell()
            elif head.kind in kinds:
                if head.kind == _DATA and head.number != self._number:
                    raise self._error(f"it sent a part of its exchange {head.number} in exchange {self._number}")
                return head
            elif head.kind != _TELL:
                raise self._error(f"a message of kind {head.kind} came where one of {kinds} was due")

    def _send_safely(self, kind: int, *, first: int = -1) -> bool:
        """Send a head, unless goodbye was said; if the connection is broken, the thread finds out, and says so."""
        with self._lock:
            if self._state == "over":
                return False
            self._state = "over" if kind in (_BYE, _FAIL) else self._state
            try:
                self._send(kind, first=first)
            except CommError:
                return False
        return True

    def _send(self, kind: int, *, first: int = -1, body: Tensor | None = None) -> None:
        host = self._host
        head = Head(kind=kind, number=self._number, steps=host.told_steps, first=first, meetings=host.known)
        self.channel.send(head, body)

    def _send_body(self, made: Tensor, message: Tensor) -> None:
        if made is not message:
            message.copy_(made, non_blocking=True)
            finish_copies(self._device)
        self._send(_DATA, body=message)

    def _receive_body(self, message: Tensor, made: Tensor) -> None:
        self.channel.receive(message)
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
