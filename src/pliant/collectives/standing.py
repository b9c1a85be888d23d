"""Receives that stand: of messages that come again in every exchange, and are posted before they are due."""

from collections.abc import Sequence

import torch

from pliant.accelerator import is_accelerator
from pliant.comm.base import Comm, EndedWork, PeerTensors, Work

__all__ = ["AllWorks", "StandingReceives", "standing_receives"]


class AllWorks:
    """Several communications in flight as one."""

    def __init__(self, *works: Work) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all, one after another."""
        for work in self._works:
            work.wait()


class StandingReceives:
    """Receives of messages that come again in every exchange; those of the next one stand before it begins.

    Gloo sends a message once its receiver has told that it waits. Where both begin an exchange at the same time, that
    takes the delay of the way back, so that each round costs a round trip. Receives that were posted when the exchange
    before had been read let a message leave at once.

    Note [standing receives]: such messages have a tag of their own, which all ranks get in the same order
    (`Comm.new_tag`), and keep their order between two ranks. So receives that stand when a plan ends, or is given up,
    meet no other message. Nobody but `take` waits for them, and buffers are read before they stand again.

    Args:
        comm: Ranks that exchange.
        rounds: Buffers of each round with the ranks from which they are filled; other ranks may have more rounds. All
            of an exchange are taken, in their order, before the first one stands again.

    """

    def __init__(self, comm: Comm, rounds: Sequence[PeerTensors]) -> None:
        self._comm, self._rounds, self._tag = comm, rounds, comm.new_tag()
        self._standing: dict[int, Work] = {}

    def take(self, k: int = 0) -> Work:
        """Return the receives of round k of an exchange that begins; they are posted now if none stand."""
        work = self._standing.pop(k, None)
        return self._post(k) if work is None else work

    def send(self, sends: PeerTensors, k: int = 0) -> Work:
        """Send messages of round k to peers whose receives stand."""
        return self._comm.exchange(sends, (), turn=k, tag=self._tag) if sends else EndedWork()

    def stand(self, k: int = 0) -> None:
        """Post the receives of round k of the next exchange. What has come is read by now."""
        self._standing[k] = self._post(k)

    def _post(self, k: int) -> Work:
        return self._comm.expect(self._rounds[k], turn=k, tag=self._tag) if self._rounds[k] else EndedWork()


def standing_receives(comm: Comm, rounds: Sequence[PeerTensors], device: torch.device) -> StandingReceives | None:
    """Return receives that may be posted before they are due, or None where they may not.

    Where calls run one after another, as on NCCL, one before its time would wait for ever; and what is staged for an
    accelerator is copied where it is waited for.
    """
    alone = comm.size == 1 or comm.is_in_order or comm.prefers_collectives or is_accelerator(device)
    return None if alone else StandingReceives(comm, rounds)
