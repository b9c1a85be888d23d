"""Receives that stand: of messages that come again in every exchange, and are posted before they are due."""

from collections import Counter
from collections.abc import Sequence

from pliant.comm.base import Comm, PeerTensors, Work
from pliant.comm.works import AllWorks, EndedWork

__all__ = ["StandingReceives"]


class StandingReceives:
    """Receives of messages that come again in every exchange; those of the next one stand before it begins.

    Gloo sends a message once its receiver has told that it waits. Where both begin an exchange at the same time, that
    takes the delay of the way back, so that each round costs a round trip. Receives that were posted when the exchange
    before had been read let a message leave at once. In an exchange of several rounds, those of the next round are
    posted before this round's messages are sent. Where calls run one after another, as on NCCL, a receive before its
    time would wait for ever: there none stands, and each round posts its own.

    Note [standing receives]: such messages have a tag of their own, which all ranks get in the same order
    (`Comm.new_tag`), and keep their order between two ranks. So receives that stand when a plan ends, or is given up,
    meet no other message. Nobody but `take` waits for them, and buffers are read before they stand again. Whether a
    rank's receives stand is its own affair, which no other rank need know.

    Args:
        comm: Ranks that exchange.
        rounds: Buffers of each round with the ranks from which they are filled, a buffer in one round alone; other
            ranks may have more rounds. All of an exchange are taken, in their order, before the first one stands again.
        pipelined: Whether messages of all rounds are under way at once, so that each takes other connections (`turn`).

    """

    def __init__(self, comm: Comm, rounds: Sequence[PeerTensors], *, pipelined: bool = False) -> None:
        self._comm, self._rounds, self._tag, self._pipelined = comm, rounds, comm.new_tag(), pipelined
        self._standing: dict[int, Work] = {}
        self._taken = Counter[int]()
        self._leaving: Work = EndedWork()

    def exchange(self, sends: PeerTensors, k: int = 0) -> Work:
        """Send the messages of round k, and receive those to this rank."""
        return AllWorks(*self._begin(sends, k))

    def start(self, sends: PeerTensors, k: int) -> Work:
        """Begin round k of several; what leaves may do so until the work of the next round is waited for, or `end`."""
        before = self._leaving if k else EndedWork()
        came, self._leaving = self._begin(sends, k)
        return AllWorks(came, before)

    def end(self) -> None:
        """Wait for what the last round has sent, and let the first receives of the next exchange stand."""
        self._leaving.wait()
        self.stand()

    def _begin(self, sends: PeerTensors, k: int) -> tuple[Work, Work]:
        """Return what comes, and what leaves; where calls run one after another both are one."""
        if self._comm.is_in_order:
            receives = self._rounds[k]
            both = self._comm.exchange(sends, receives) if sends or receives else EndedWork()
            return both, EndedWork()
        came = self.take(k)
        if k + 1 < len(self._rounds) and k + 1 not in self._standing:
            self._standing[k + 1] = self._post(k + 1)  # words go before messages, which may be long
        return came, self.send(sends, k)

    def take(self, k: int = 0) -> Work:
        """Return the receives of round k of an exchange that begins; they are posted now if none stand."""
        self._taken[k] += 1
        return self._standing.pop(k, None) or self._post(k)

    def send(self, sends: PeerTensors, k: int = 0) -> Work:
        """Send messages of round k to peers whose receives stand."""
        return self._comm.exchange(sends, (), turn=self._turn(k), tag=self._tag) if sends else EndedWork()

    def stand(self, k: int = 0) -> None:
        """Post the receives of round k of the next exchange. What has come is read by now.

        The first time nothing happens: an exchange that does not come again leaves nothing behind.
        """
        if self._taken[k] > 1:
            self._standing[k] = self._post(k)

    def _post(self, k: int) -> Work:
        receives = self._rounds[k]
        return self._comm.expect(receives, turn=self._turn(k), tag=self._tag) if receives else EndedWork()

    def _turn(self, k: int) -> int:
        return k if self._pipelined else 0
