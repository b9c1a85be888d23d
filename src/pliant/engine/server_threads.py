"""Stale synchronous parallel training: every rank computes gradients, and serves its parameters from threads."""

import contextlib
import threading
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.codecs import Codec
from pliant.comm.base import Comm, CommError, Work, duplicate
from pliant.engine.gradient_exchange import NonFiniteGradientError
from pliant.engine.messages import Message, wait_for, waiting_thread
from pliant.engine.optimizer_copy import unscale
from pliant.engine.owned_ranges import OwnedRanges, unpack
from pliant.engine.owner_step import OwnerStep
from pliant.engine.server_question import Question
from pliant.engine.server_shard import ServerShard
from pliant.engine.server_state import WAIT_ON, SharedShard

__all__ = ["ServerThreads"]

_PUSH, _LEAVE, _BYE, _FAIL = range(4)
"""Codes in the head of a message to an owner; from _FAIL on, that plus the rank that failed first. The head of an
answer holds the rank that has failed, -1, or WAIT_ON."""

_IDLE_S = 365 * 86400.0
"""Idle limit of server threads; a rank that waits for an answer does so until the comm's timeout."""
_EXPLAIN_S = 1.0
"""Time for which a rank with a broken connection listens for the rank that failed first."""
_HANG_UP_S = 5.0
"""Time for which a rank that ends with an error waits for its peers to close their connections."""


class ServerThreads:
    """Threads that serve parameters to ranks within a bounded staleness (`StalenessClock`).

    A rank sends its gradients to all owners after each backward pass, one message each, and each owner answers with the
    weights that it owns. One thread for each peer receives, adds up, steps and answers, so that a rank serves while it
    computes. Answers are written to the model in the user's thread, between two steps. Two groups of their own keep
    questions and answers apart. Bytes: as in an all-reduce, 2 (n-1)/n N out and in per step of each rank; with a codec,
    which gradients are sent in and weights are not, (n-1)/n N less what it saves of (n-1)/n N. Messages lie in host
    memory; with weights on an accelerator, each costs a copy that its thread waits for.

    If a rank fails, its peers are told, or see its connections close, and answer everybody with its number: each raises
    CommError at its next step, and tells its peers the same, so that all stop listening to each other. A rank that is
    silent for the timeout while others wait for it is named too.

    Args:
        owned: Owners of the parameters.
        comm: Comm of the run, which is duplicated.
        optimizer: The user's.
        staleness: Most steps that a rank may be ahead of the slowest.
        codec: Codec of gradients on their way to owners; None for float32.
        slots: Parameter -> its slots, among which a codec needs "residual".

    """

    def __init__(
        self,
        owned: OwnerStep,
        comm: Comm,
        optimizer: Optimizer,
        staleness: int,
        codec: Codec | None = None,
        slots: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
    ) -> None:
        if comm.size == 1:  # alone, there is no network to hide, nor to save
            staleness, codec = 0, None
        self._comm, self._codec, self._slots, self._staleness = comm, codec, slots, staleness
        self._asks, self._answers = duplicate(comm), duplicate(comm)
        self._held = {rank: held for rank in range(comm.size) if (held := owned.owned_by(rank))}
        self._device = next(own.parameter.device for held in self._held.values() for own in held)
        numels = {rank: sum(own.numel for own in held) for rank, held in self._held.items()}
        self._questions = {rank: Question(held, codec) for rank, held in self._held.items()}
        self._out = {rank: question.message for rank, question in self._questions.items()}
        self._in = {rank: Message(4 * numel, self._device) for rank, numel in numels.items()}
        self._shard = shard = ServerShard(owned.owned_by(comm.rank), optimizer, codec)
        self._numel, self._shared = shard.numel, SharedShard(shard, comm, self._staleness, self._held)
        self._asked: list[Work] | None = None
        """Answers and questions under way, one of each for each peer."""
        self._epoch = 0
        self._open = True
        peers = [peer for peer in range(comm.size) if peer != comm.rank] if self._numel else []
        self._threads = [
            threading.Thread(target=self._serve, args=(peer,), name=f"pliant-owner-{peer}", daemon=True)
            for peer in peers
        ]
        for thread in self._threads:
            thread.start()

    # - The rank that computes

    def step(self, optimizer: Optimizer, step: int) -> None:
        """Send the gradients to the owners, drop them from the user's optimizer, and receive weights."""
        parameters = {own.name: own.parameter for held in self._held.values() for own in held}
        unscale(optimizer, parameters.values())
        self.send({name: p.grad for name, p in parameters.items() if p.grad is not None}, step)
        for parameter in parameters.values():
            parameter.grad = None
        self.receive()

    def send(self, gradients: Mapping[str, Tensor], step: int) -> None:
        """Send gradients to the owners, by parameter; zeros for those that have none."""
        self._take()
        for rank, held in self._held.items():
            given = [(own, gradients.get(own.name)) for own in held]
            whole = [(own, torch.zeros_like(own.parameter) if g is None else g) for own, g in given]
            theirs = [view for own, gradient in whole for view in own.views(gradient)]
            residuals = [] if self._codec is None else [view for own in held for view in self._residuals_of(own)]
            if not self._questions[rank].fill(theirs, residuals, step << 32 | self._comm.rank):
                raise NonFiniteGradientError(
                    f"in step {step} rank {self._comm.rank} has a NaN or Inf in a gradient, and has not sent it. "
                    "Lower the learning rate or clip."
                )
        self._shared.follow_schedule()
        self._ask(_PUSH, gradients.keys())

    def receive(self) -> None:
        """Write the weights that belong to what was sent last to the model; with a staleness, the next `send` does."""
        if self._staleness == 0:
            self._take()

    def _residuals_of(self, own: OwnedRanges) -> list[Tensor]:
        residual = self._slots[own.name]["residual"]  # in the order of the bucket, and not of the parameter's memory
        return [residual] if own.is_whole else [residual.view(-1)[start:stop] for start, stop in own.ranges]

    def leave(self) -> None:
        """Let other ranks go on without this one, until all have left."""
        self._take()
        self._ask(_LEAVE)

    def finish(self) -> None:
        """Wait until all ranks have left and all gradients are used; then all have equal weights. Collective."""
        me = self._comm.rank
        if me in self._in:  # first, since it waits as long as others train, and messages no longer than the timeout
            self._shared.answer(me, self._epoch, self._in[me])
        self._take()
        if self._comm.size > 1:
            self._comm.barrier()

    def begin(self) -> None:
        """Continue from the current weights and optimizer state; between two steps."""
        self._shared.begin()

    def close(self) -> None:
        """End the threads, after `finish`. Collective."""
        self._open = False
        wait_for(self._post(_BYE))
        for thread in self._threads:
            thread.join(self._comm.timeout_s)
        self._asks.close()
        self._answers.close()

    def abandon(self) -> None:
        """Tell all peers that this rank is lost, and close their connections; nothing after `close`."""
        if not self._open:
            return
        self._open = False
        first, _ = self._shared.fail(self._comm.rank, "it has given up")  # or another's failure ends this rank
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
        """Close the connections, which ends the threads. Takes no lock and waits for nobody."""
        self._open = False
        self._asks.hang_up()
        self._answers.hang_up()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _ask(self, kind: int, used: Collection[str] = ()) -> None:
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
            self._epoch = self._shared.note(me, self._out[me].payload if kind == _PUSH else None, used)

    def _take(self) -> None:
        """Wait for the answers to the last question, and write the weights that came to the model."""
        if self._asked is None:
            return
        self._shared.taking = True
        try:
            error = self._settle()
            while error is None and (early := [k for k, m in self._in.items() if int(m.head) == WAIT_ON]):
                self._asked = [self._answers.exchange([], [(k, self._in[k].bytes)]) for k in early]
                error = self._settle()
        except CommError as broken:
            error = broken
        finally:
            self._shared.taking = False
        if error is not None:
            self._explain(error)
        if self._comm.rank in self._in:
            self._shared.answer(self._comm.rank, self._epoch, self._in[self._comm.rank])
        for rank, message in self._in.items():
            if (failed := int(message.head)) >= 0:
                self._raise_for(failed, f"rank {rank} has reported it")
        for rank, message in self._in.items():
            unpack(message.body, [view for own in self._held[rank] for view in own.views(own.parameter)])

    def _settle(self) -> CommError | None:
        """Wait for all messages in flight, so that no peer is left with an answer that nobody takes."""
        asked, self._asked = self._asked, None
        first = None
        for work in asked or ():
            try:
                work.wait()
            except CommError as error:
                first = first or error
        return first

    def _explain(self, error: CommError) -> NoReturn:
        """Raise for the rank that failed first: a broken connection is seen here first, and explained to a thread."""
        if (failure := self._shared.failure_within(_EXPLAIN_S)) is not None:
            self._raise_for(*failure)
        if error.lost:
            self._raise_for(error.lost[0], str(error))
        raise CommError(f"waiting for owners: {error}", rank=error.rank, op=error.op, lost=error.lost) from error

    def _raise_for(self, failed: int, why: str) -> NoReturn:
        failed, why = self._shared.fail(failed, why)  # unless this rank knows of an earlier one
        me = self._comm.rank
        text = f"rank {me} of {self._comm.size}: rank {failed} no longer takes part in the exchange with owners: {why}."
        raise CommError(text, rank=me, op="exchange", lost=(failed,))

    # - The rank that owns

    def _serve(self, peer: int) -> None:
        """Receive from a peer and answer it, until it leaves. Runs in a thread of its own."""
        question, answer = Message(self._shard.num_bytes, self._device), Message(4 * self._numel, self._device)
        try:
            while True:
                self._asks.exchange([], [(peer, question.bytes)], patience_s=_IDLE_S).wait()
                kind = int(question.head)
                if kind == _BYE:
                    return
                if kind >= _FAIL:
                    self._shared.fail(kind - _FAIL, f"it has ended with an error of its own, says rank {peer}")
                    return
                for _ in self._shared.serve(peer, question.payload if kind == _PUSH else None, answer):
                    self._answers.exchange([(peer, answer.bytes)], []).wait()
        except CommError as error:
            began = peer if not error.lost or peer in error.lost else error.lost[0]  # for whom the peer has hung up
            self._shared.fail(began, f"its connection broke ({error})")
        except Exception as error:  # noqa: BLE001  whatever it is, all ranks must end
            self._shared.fail(self._comm.rank, f"its thread raised {type(error).__name__}: {error}")

    def _post(self, kind: int) -> Work:
        last = {rank: Message(message.payload.numel(), self._device) for rank, message in self._out.items()}
        for message in last.values():
            message.head.fill_(kind)
        return self._asks.exchange([(rank, m.bytes) for rank, m in last.items() if rank != self._comm.rank], [])
