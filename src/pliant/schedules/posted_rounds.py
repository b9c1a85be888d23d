"""Messages of a schedule's rounds, whose receives are posted a round ahead where the transport allows it."""

from collections.abc import Sequence

from pliant.comm.base import Comm, EndedWork, PeerTensors, Work

__all__ = ["PostedRounds"]


class PostedRounds:
    """Exchanges of rounds that follow one another; receivers tell that they wait before the round begins.

    Gloo sends a message once its receiver has told that it waits. Where both begin a round at the same time, that takes
    the delay of the way back. So with the sends of a round go the receives of the next one, whose buffers nothing else
    uses: only the first round waits for words. Where calls run one after another, as on NCCL, a receive ahead of its
    round would wait for ever; there each round posts its own.

    Args:
        comm: Ranks that exchange.
        receives: Buffers of each round with the ranks from which they come; no two rounds share one.

    """

    def __init__(self, comm: Comm, receives: Sequence[PeerTensors]) -> None:
        self._comm, self._receives = comm, receives
        self._coming: Work = EndedWork()
        """What was posted with the round before: its sends, and the receives of this one."""

    def start(self) -> None:
        """Post the receives of the first round."""
        if not self._comm.is_in_order and self._receives:
            self._coming = self._post((), self._receives[0])

    def exchange(self, number: int, sends: PeerTensors) -> None:
        """Send the messages of a round, and return once those to this rank have come.

        Sends may still be under way until the next round, or `end`.
        """
        if self._comm.is_in_order:
            self._post(sends, self._receives[number]).wait()
            return
        following = self._receives[number + 1] if number + 1 < len(self._receives) else ()
        came, self._coming = self._coming, self._post(sends, following)
        came.wait()

    def end(self) -> None:
        """Wait for the last sends."""
        self._coming.wait()
        self._coming = EndedWork()

    def _post(self, sends: PeerTensors, receives: PeerTensors) -> Work:
        return self._comm.exchange(sends, receives) if sends or receives else EndedWork()
