"""Receives that stand: of messages that come again in every exchange, and are posted before they are due."""

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec
from pliant.collectives.halves import FromOwners, Parts, ToOwners
from pliant.comm.base import Comm, EndedWork, PeerTensors, Work

__all__ = ["AllWorks", "StandingFromOwners", "StandingReceives", "StandingToOwners", "may_stand"]


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
        receives: Buffers with the ranks from which they are filled.
        tag: One of `new_tag`.
        turn: As in the exchange that sends the messages.

    """

    def __init__(self, comm: Comm, receives: PeerTensors, *, tag: int, turn: int = 0) -> None:
        self._comm, self._receives, self._tag, self._turn = comm, receives, tag, turn
        self._standing: Work | None = None

    def take(self) -> Work:
        """Return the receives of an exchange that begins; they are posted now if none stand."""
        work, self._standing = self._standing, None
        return self._post() if work is None else work

    def send(self, sends: PeerTensors) -> Work:
        """Send messages to peers whose receives stand."""
        return self._comm.exchange(sends, (), turn=self._turn, tag=self._tag) if sends else EndedWork()

    def stand(self) -> None:
        """Post the receives of the next exchange. What has come is read by now."""
        self._standing = self._post()

    def _post(self) -> Work:
        if not self._receives:
            return EndedWork()
        return self._comm.expect(self._receives, turn=self._turn, tag=self._tag)


def may_stand(comm: Comm, device: torch.device) -> bool:
    """Say whether receives may be posted before they are due.

    Where calls run one after another, as on NCCL, one before its time would wait for ever; and what is staged for an
    accelerator is copied where it is waited for.
    """
    return comm.size > 1 and not comm.is_in_order and not comm.prefers_collectives and not is_accelerator(device)


class StandingToOwners(ToOwners):
    """First half of an average, whose receives stand: those of piece k since the owner has added it up before."""

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        super().__init__(codec, parts, comm, device)
        self._tag = comm.new_tag()
        self._standing = [StandingReceives(comm, r, tag=self._tag, turn=k) for k, r in enumerate(self._receives)]

    def send(self, x: Tensor, residual: Tensor | None, seed: int) -> list[list[Work]]:
        taken = [receives.take() for receives in self._standing]
        posted = super().send(x, residual, seed)
        for k, work in enumerate(taken):
            posted[k].insert(0, work)
        return posted

    def stand(self, k: int) -> None:
        """Let the receives of piece k stand, which has been added up."""
        self._standing[k].stand()

    def _exchange(self, k: int, sends: PeerTensors, receives: PeerTensors) -> Work:
        return self._comm.exchange(sends, (), turn=k, tag=self._tag) if sends else EndedWork()


class StandingFromOwners(FromOwners):
    """Second half of an average, whose receives stand since their payloads were decoded the last time."""

    def __init__(self, codec: Codec, parts: Parts, comm: Comm, device: torch.device) -> None:
        super().__init__(codec, parts, comm, device)
        tag = comm.new_tag()
        self._standing = [StandingReceives(comm, r, tag=tag, turn=k) for k, r in enumerate(self._receives)]

    def send(self, k: int) -> Work:
        own = self.payloads[self._comm.rank]
        sends = [(peer, own[k]) for peer in self._peers if k < len(own)]
        return AllWorks(self._standing[k].take(), self._standing[k].send(sends))

    def stand(self) -> None:
        """Let all receives stand, whose payloads have been decoded."""
        for receives in self._standing:
            receives.stand()
