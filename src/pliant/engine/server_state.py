"""State of an owner at a free pace, which the thread that computes and those that serve share under one lock."""

import threading
from collections.abc import Collection, Iterator

from torch import Tensor

from pliant.collectives import StalenessClock
from pliant.comm.base import Comm
from pliant.engine.messages import Message, comes_in_time
from pliant.engine.server_shard import ServerShard

__all__ = ["WAIT_ON", "SharedShard"]

WAIT_ON = -2
"""Head of an answer to a rank that has left while others train: there is nothing in it, and another one follows."""


class SharedShard:
    """Weights that one owner serves, who may read them, and which rank was the first to fail.

    Args:
        shard: The weights.
        comm: Whose ranks send gradients; its timeout limits how long one of them waits for the others.
        staleness: The bound.
        owners: Ranks that own something, and so hear of others' messages themselves; all if None.

    """

    def __init__(self, shard: ServerShard, comm: Comm, staleness: int, owners: Collection[int] | None = None) -> None:
        self._shard, self._comm, self._staleness = shard, comm, staleness
        self._owners = range(comm.size) if owners is None else owners
        self._clocks = StalenessClock(comm.size, staleness)
        self._in_hand: dict[int, Tensor] = {}
        """At staleness 0, gradients that wait for the others', to be added in the order of ranks: to the bit alike."""
        self._used: set[str] = set()
        """Parameters of which this rank itself has sent a gradient that no step has used."""
        self._num_heard = 0
        """Messages of all ranks so far."""
        self._changed = threading.Condition()
        """Guards all this, and tells of every change."""
        self.failure: tuple[int, str] | None = None
        """The first rank that has failed, and why."""
        self.taking = False
        """Whether the thread that computes waits for answers."""

    def begin(self) -> None:
        """Go on from the model's weights and the optimizer's state as they are."""
        with self._changed:
            self._shard.begin()

    def follow_schedule(self) -> None:
        """Copy learning rates and other settings from the user's optimizer."""
        with self._changed:
            self._shard.follow_schedule()

    def note(self, rank: int, gradient: Tensor | None, used: Collection[str] = ()) -> int:
        """Take a rank's gradient, or None if it leaves, and step if that is due; return the epoch in which it came.

        Args:
            rank: The rank.
            gradient: Its gradient.
            used: Parameters that have one on this rank, if it is this rank's own.

        """
        with self._changed:
            self._used.update(used)
            self._num_heard += 1
            epoch = self._clocks.epoch
            if gradient is None:
                due = self._clocks.leave(rank)
            else:
                if self._staleness == 0:
                    self._in_hand[rank] = gradient  # stays as it is until it is answered
                else:
                    self._shard.add(gradient)
                due = self._clocks.push(rank)
            if due:
                self._step(due)
            self._changed.notify_all()
            return epoch

    def serve(self, rank: int, gradient: Tensor | None, answer: Message) -> Iterator[None]:
        """Take a rank's gradient, or None if it leaves; yield when an answer is to be sent, the last when it may go on.

        One that has left waits as long as others train. If it owns nothing, so that it hears of none, it is told.
        """
        epoch = self.note(rank, gradient)
        while not self.answer(rank, epoch, answer):
            yield
        yield

    def _step(self, due: int) -> None:
        for _, gradient in sorted(self._in_hand.items()):
            self._shard.add(gradient)
        self._in_hand.clear()
        try:
            self._shard.step(due, self._used)
            self._used.clear()
        except Exception as error:  # noqa: BLE001  whatever the user's optimizer raises, all ranks must end
            self.fail(self._comm.rank, f"its optimizer raised {type(error).__name__}: {error}")

    def answer(self, rank: int, epoch: int, answer: Message) -> bool:
        """Wait until a rank may go on, and fill in its answer; return whether it may, or else has to wait on."""
        limit_s = 0.9 * self._comm.timeout_s  # before the waiting rank's own, so that it hears for whom it waits

        def done() -> bool:
            return self.failure is not None or self._clocks.may_read(rank, epoch)

        def heard() -> int:  # behind a rank that has left others train, for as long as they like
            return self._num_heard if self._clocks.left[rank] else 0

        with self._changed:
            if self._clocks.left[rank] and rank not in self._owners:
                before = self._num_heard
                if not self._changed.wait_for(done, limit_s) and self._num_heard > before:
                    answer.head.fill_(WAIT_ON)
                    return False
                in_time = done()
            else:
                in_time = comes_in_time(self._changed, done, limit_s, heard)
            if not in_time:
                me = self._comm.rank  # who waits for another owner itself is not the one that keeps others waiting
                slowest = self._clocks.slowest_but(me if self.taking and rank != me else -1)
                self.fail(
                    slowest,
                    f"it has sent nothing while rank {rank} waited for it for {limit_s:.3g}s; if it lives, it may be "
                    "evaluating or saving: raise timeout_s",
                )
            answer.head.fill_(-1 if self.failure is None else self.failure[0])
            self._shard.read(answer.body)
        return True

    def fail(self, rank: int, why: str) -> tuple[int, str]:
        """Note that a rank has failed, unless another has before; return which was the first."""
        with self._changed:
            self.failure = self.failure or (rank, why)
            self._changed.notify_all()
            return self.failure

    def failure_within(self, seconds: float) -> tuple[int, str] | None:
        """Return the first failure, for which this waits so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, seconds)
            return self.failure
