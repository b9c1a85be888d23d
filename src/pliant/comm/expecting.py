"""Receives over a process group that are posted before their time, and tags that no other message has."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import count

from pliant.comm import calls
from pliant.comm.base import CommError, PeerTensors, Work, require_contiguous
from pliant.comm.pending import FailedWork, PendingWorks, TorchWork
from pliant.comm.progress import Progress
from pliant.comm.striping import Striping

__all__ = ["ExpectsMessages"]

_FIRST_TAG = 16
"""Lower tags are named where they are used."""


class ExpectsMessages(ABC):
    """Base of a comm over process groups."""

    progress: Progress
    _striping: Striping

    @cached_property
    def _tags(self) -> Iterator[int]:
        return count(_FIRST_TAG)

    @cached_property
    def _expected(self) -> "weakref.WeakSet[PendingWorks]":
        return weakref.WeakSet()

    @property
    @abstractmethod
    def _groups(self) -> calls.Groups: ...

    @property
    @abstractmethod
    def timeout_s(self) -> float:
        """Longest wait for one communication."""

    @abstractmethod
    def given_up(self, op: str, error: BaseException, size: str, waited_s: float) -> CommError:
        """Make the report of a failed communication, and close the connections."""

    def expect(self, receives: PeerTensors, *, turn: int = 0, tag: int = 0) -> Work:
        """Post receives of a later exchange; see `Comm.expect`."""
        require_contiguous(*(x for _, x in receives))
        works: list[TorchWork]
        try:
            posted = calls.exchange(self._groups, (), receives, self._striping, turn, tag)
            works = [work for work in posted if work is not None]
        except (RuntimeError, AttributeError) as error:  # a peer, or this group, may have ended, and nobody need know
            works = [FailedWork(RuntimeError(str(error)))]
        due = [peer for peer, _ in receives]
        work = PendingWorks(self, "exchange", works, sum(x.nbytes for _, x in receives), due=due)
        self._expected.add(work)
        return work

    def expect_no_more(self) -> None:
        """Let go of what was expected: each work, whoever keeps it, would keep the connections of this group."""
        for work in list(self._expected):
            work.let_go(RuntimeError("the group was closed before the message came"))

    def new_tag(self) -> int:
        """Return a tag that no message of this group has had; see `Comm.new_tag`."""
        return next(self._tags)
