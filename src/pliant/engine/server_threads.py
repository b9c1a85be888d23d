"""Stale synchronous parallel training: every rank computes gradients, and serves what it owns from threads beside."""

import contextlib
import threading
import time
from typing import NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.buckets import as_real
from pliant.codecs import all_finite
from pliant.collectives import StalenessClock
from pliant.comm.base import Comm, CommError, Work, duplicate
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.messages import Message, wait_for, waiting_thread
from pliant.engine.owner_step import OwnerStep, pack, unpack
from pliant.engine.server_shard import ServerShard

__all__ = ["ServerThreads"]

_PUSH, _LEAVE, _BYE, _FAIL = range(4)
"""What a message to an owner says in its head; at least _FAIL, it is that plus the rank that failed first.
What an answer says is the rank that has failed, or -1."""

_IDLE_S = 365 * 86400.0
"""Who serves waits for as long as others compute; who waits for an answer does so until the comm's timeout."""

_EXPLAIN_S = 1.0
"""How long a rank whose connection broke listens for the rank that began it."""
_HANG_UP_S = 5.0
"""How long a rank that ends with an error waits for its peers to hang up too."""


class ServerThreads:
    """Parameters whose owners take gradients as they come (`StalenessClock` says who may go on).

    A rank sends its gradients to all owners after each backward pass, one message each, and is answered by each with
    the weights that it owns. One thread for each peer receives, adds up, steps and answers, so that a rank serves
    while it computes. Answers are written to the model in the user's thread, between two steps. Two groups of their
    own keep questions and answers apart. Bytes: as in an all-reduce, 2 (n-1)/n N out and in per step of each rank.

    If a rank fails, its peers are told, or see its connections close, and answer everybody with its number: each
    raises CommError at its next step, and tells its peers the same, so that all stop listening to each other. A rank
    that is silent for the timeout while others wait for it is named too.

    Args:
        owned: Who owns what.
        comm: Who talks.
        optimizer: The user's.
        staleness: The bound.

    """

    def __init__(self, owned: OwnerStep, comm: Comm, optimizer: Optimizer, staleness: int) -> None:
        self._comm = comm
        self._staleness = staleness if comm.size > 1 else 0  # alone, there is no network to hide
        self._asks, self._answers = duplicate(comm), duplicate(comm)
        held = {r: [owned.parameters[name] for name in owned.names_of(r)] for r in range(comm.size)}
        self._held = {rank: parameters for rank, parameters in held.items() if parameters}
        if any(p.device.type != "cpu" for parameters in held.values() for p in parameters):
            raise ValueError(
                "owners at a free pace serve from threads through Gloo, but the model is not on the CPU; use "
                "sharded_optimizer(), or local_sgd() or async_average(), which wait for nobody either."
            )
        numels = {rank: sum(as_real(p).numel() for p in parameters) for rank, parameters in self._held.items()}
        self._out = {rank: Message(numel) for rank, numel in numels.items()}
        self._in = {rank: Message(numel) for rank, numel in numels.items()}
        self._shard = ServerShard(held[comm.rank], optimizer)
        self._clocks = StalenessClock(comm.size, self._staleness)
        self._in_hand: dict[int, Tensor] = {}
        """At staleness 0, gradients that wait for the others', to be added in the order of ranks: to the bit alike."""
        self._changed = threading.Condition()
        """Guards shard and clocks, and tells of every change."""
        self._failure: tuple[int, str] | None = None
        self._asked: list[Work] | None = None
        """Answers and questions under way, one of each for each peer."""
        self._epoch = 0
        self._taking = False
        """Whether the thread that computes waits for answers."""
        self._open = True
        peers = [peer for peer in range(comm.size) if peer != comm.rank] if self._shard.numel else []
        self._threads = [
            threading.Thread(target=self._serve, args=(peer,), name=f"pliant-owner-{peer}", daemon=True)
            for peer in peers
        ]
        for thread in self._threads:
            thread.start()

    # - The rank that computes

    def step(self, step: int) -> None:
        """Send the gradients that backward has left, take them from the optimizer, and take weights from owners."""
        if self._staleness > 0:
            self._take()
        for rank, parameters in self._held.items():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            pack(self._out[rank].body, gradients)
            if not all_finite(self._out[rank].body):
                raise NonFiniteGradientError(
                    f"in step {step} rank {self._comm.rank} has a NaN or Inf in a gradient, and has not sent it. "
                    "Lower the learning rate or clip."
                )
            for parameter in parameters:
                parameter.grad = None
        with self._changed:
            self._shard.follow_schedule()
        self._ask(_PUSH)
        if self._staleness == 0:
            self._take()

    def finish(self) -> None:
        """Wait until all ranks have come here and all gradients are used; then all have equal weights. Collective."""
        self._take()
        self._ask(_LEAVE)
        self._take()
        if self._comm.size > 1:
            self._comm.barrier()

    def begin(self) -> None:
        """Go on from the model's weights and the optimizer's state as they are; between two steps."""
        with self._changed:
            self._shard.begin()

    def close(self) -> None:
        """End the threads, after `finish`. Collective."""
        self._open = False
        wait_for(self._post(_BYE))
        for thread in self._threads:
            thread.join(self._comm.timeout_s)
        self._asks.close()
        self._answers.close()

    def abandon(self) -> None:
        """Tell all peers that this rank is lost to them, and hang up with those that do; nothing after `close`."""
        if not self._open:
            return
        self._open = False
        self._fail(self._comm.rank, "it has given up")  # unless another's failure is what ends this rank
        first = self._comm.rank if self._failure is None else self._failure[0]
        with contextlib.suppress(CommError):  # who is gone need not hear it
            self._threads.append(waiting_thread(self._post(_FAIL + first)))
        settling = waiting_thread(*(self._asked or ()))
        self._asked = None
        self._threads.append(settling)
        self.join(_HANG_UP_S)
        self.stop()  # who has not hung up by now is stuck, and would keep this rank
        self.join(_HANG_UP_S)
        self._asks.close()
        self._answers.close()

    def stop(self) -> None:
        """Hang up, which ends the threads. Takes no lock and waits for nobody."""
        self._open = False
        self._asks.hang_up()
        self._answers.hang_up()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _ask(self, kind: int) -> None:
        me = self._comm.rank
        self._asked = asked = []
        for message in self._out.values():
            message.head.fill_(kind)
        try:
            for rank in self._held:
                if rank != me:
                    asked.append(self._answers.exchange([], [(rank, self._in[rank].bytes)]))
                    asked.append(self._asks.exchange([(rank, self._out[rank].bytes)], []))
        except CommError as error:
            self._explain(error)
        if me in self._out:
            with self._changed:
                self._epoch = self._note(kind, me, self._out[me].body)

    def _take(self) -> None:
        """Wait for the answers to the last question, and write the weights that came to the model."""
        if self._asked is None:
            return
        self._taking = True
        try:
            error = self._settle()
        finally:
            self._taking = False
        if error is not None:
            self._explain(error)
        if self._comm.rank in self._in:
            with self._changed:
                self._answer(self._comm.rank, self._epoch, self._in[self._comm.rank])
        for rank, message in self._in.items():
            if (failed := int(message.head)) >= 0:
                self._raise_for(failed, f"rank {rank} has reported it")
        for rank, message in self._in.items():
            unpack(message.body, self._held[rank])

    def _settle(self) -> CommError | None:
        """Wait for all that is under way, so that no peer is left with an answer that nobody takes."""
        asked, self._asked = self._asked, None
        first = None
        for work in asked or ():
            try:
                work.wait()
            except CommError as error:
                first = first or error
        return first

    def _explain(self, error: CommError) -> NoReturn:
        """Raise for the rank that began it: a broken connection is seen first here, and explained to a thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, _EXPLAIN_S)
            if self._failure is not None:
                self._raise_for(*self._failure)
        if error.lost:
            self._raise_for(error.lost[0], str(error))
        raise CommError(f"waiting for owners: {error}", rank=error.rank, op=error.op, lost=error.lost) from error

    def _raise_for(self, failed: int, why: str) -> NoReturn:
        self._fail(failed, why)  # unless this rank knows of an earlier one
        failed, why = self._failure or (failed, why)
        me = self._comm.rank
        text = f"rank {me} of {self._comm.size}: rank {failed} no longer takes part in the exchange with owners: {why}."
        raise CommError(text, rank=me, op="exchange", lost=(failed,))

    # - The rank that owns

    def _serve(self, peer: int) -> None:
        """Receive from a peer and answer it, until it says goodbye. Runs in a thread of its own."""
        question, answer = Message(self._shard.numel), Message(self._shard.numel)
        try:
            while True:
                self._asks.exchange([], [(peer, question.bytes)], patience_s=_IDLE_S).wait()
                kind = int(question.head)
                if kind == _BYE:
                    return
                if kind >= _FAIL:
                    self._fail(kind - _FAIL, f"it has ended with an error of its own, says rank {peer}")
                    return
                with self._changed:
                    self._answer(peer, self._note(kind, peer, question.body), answer)
                self._answers.exchange([(peer, answer.bytes)], []).wait()
        except CommError as error:
            began = peer if not error.lost or peer in error.lost else error.lost[0]  # for whom the peer has hung up
            self._fail(began, f"its connection broke ({error})")

    def _note(self, kind: int, rank: int, gradient: Tensor) -> int:
        """Take what a rank has sent, and step if that is due; return the epoch in which it came. The lock is held."""
        epoch = self._clocks.epoch
        if kind == _PUSH:
            if self._staleness == 0:
                self._in_hand[rank] = gradient  # stays as it is until it is answered
            else:
                self._shard.add(gradient)
            due = self._clocks.push(rank)
        else:
            due = self._clocks.leave(rank)
        if due:
            for _, waiting in sorted(self._in_hand.items()):
                self._shard.add(waiting)
            self._in_hand.clear()
            try:
                self._shard.step(due)
            except Exception as error:  # noqa: BLE001  whatever the user's optimizer raises, all ranks must end
                self._fail(self._comm.rank, f"its optimizer raised {type(error).__name__}: {error}")
        self._changed.notify_all()
        return epoch

    def _answer(self, rank: int, epoch: int, answer: Message) -> None:
        """Wait until a rank may go on, and fill in its answer. The lock is held, but for the waiting."""
        limit_s = 0.9 * self._comm.timeout_s  # before the waiting rank's own, so that it hears for whom it waits

        def done() -> bool:
            return self._failure is not None or self._clocks.may_read(rank, epoch)

        if not self._changed.wait_for(done, limit_s):
            me = self._comm.rank  # who waits for another owner itself is not the one that keeps others waiting
            slowest = self._clocks.slowest_but(me if self._taking and rank != me else -1)
            self._fail(
                slowest,
                f"it has sent nothing while rank {rank} waited for it for {limit_s:.3g}s; if it lives, it may be "
                "evaluating or saving: raise timeout_s",
            )
        answer.head.fill_(-1 if self._failure is None else self._failure[0])
        self._shard.read(answer.body)

    def _fail(self, rank: int, why: str) -> None:
        with self._changed:
            self._failure = self._failure or (rank, why)
            self._changed.notify_all()

    def _post(self, kind: int) -> Work:
        last = {rank: Message(message.body.numel()) for rank, message in self._out.items()}
        for message in last.values():
            message.head.fill_(kind)
        return self._asks.exchange([(rank, m.bytes) for rank, m in last.items() if rank != self._comm.rank], [])
