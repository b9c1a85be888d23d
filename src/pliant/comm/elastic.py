"""Elastic groups: a new group when a rank is lost or joins, by heartbeats and an agreement on members."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from itertools import count
from typing import TypeVar

from torch.distributed import PrefixStore, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.base import CommError, Limit
from pliant.comm.epoch_messages import EpochMessages
from pliant.comm.gloo_private import gloo_group
from pliant.comm.heartbeat_thread import BEAT_S, HeartbeatThread
from pliant.comm.membership import MembershipError, MembershipProtocol
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.records import Epoch, MemberRecord
from pliant.comm.rendezvous import Rendezvous, rendezvous_for
from pliant.comm.sealed_store import SealedStore
from pliant.comm.secret import is_loopback
from pliant.comm.signed_records import Records, Seal
from pliant.comm.store_timeout import answers_within

__all__ = ["ElasticGroup", "NotSignedError"]

T = TypeVar("T")

_POLL_S = 0.02
_SILENT_S = 5.0
_PREFIX = "pliant-elastic"


class NotSignedError(CommError):
    """A rank was sent something else than the first member of its epoch has signed."""


class ElasticGroup:
    """This rank's membership in an elastic group.

    A thread sends a heartbeat twice a second and reads whether the epoch has ended, so that `is_over` communicates
    nothing.

    Args:
        group: A group of a world of threads, or None for the world of torchrun's environment.
        min_ranks: Fewest ranks that continue.
        regroup_s: Longest wait for members that are alive but do not arrive.
        timeout_s: Longest that one communication may take.
        start_timeout_s: Longest wait for all ranks at the beginning.
        secret: Secret of all ranks; None for a run that stays on loopback.
        run: Name of the run, with which the secret is mixed.

    Raises:
        ValueError: There is no secret, and the store is not on this machine's loopback address.

    """

    def __init__(
        self,
        group: ProcessGroup | None,
        *,
        min_ranks: int,
        regroup_s: float,
        timeout_s: float,
        start_timeout_s: float,
        secret: bytes | None = None,
        run: str = "",
    ) -> None:
        with answers_within(regroup_s) if group is None else nullcontext():
            meeting = self._rendezvous(group, start_timeout_s)
        self._store_lost = False
        if secret is None and not (meeting.loopback or is_loopback(meeting.host)):
            raise ValueError(
                f"an elastic run without a secret stays on loopback, but its store is at {meeting.host!r}, which "
                "others reach, and torch's store asks nobody who they are; make a secret, (umask 077; openssl rand "
                "-hex 32 > run.secret), give it to all ranks, and say Elastic(secret_file='run.secret')."
            )
        self._seal = Seal(secret or b"", run)
        self._sealed: list[SealedStore] = []  # as long as a group may ask them
        self.rank = meeting.rank
        """This rank's number in the world that it was started for."""
        self._timeout_s, self._loopback = timeout_s, meeting.loopback or secret is None
        self._store = PrefixStore(_PREFIX, meeting.store)
        if not meeting.loopback:
            for store in (meeting.store, meeting.beside):
                store.set_timeout(timedelta(seconds=regroup_s))
        self._agreement = self._ask_store(
            lambda: MembershipProtocol(
                self._store,
                rank=meeting.rank,
                size=meeting.size,
                seal=self._seal,
                started=time.time_ns(),
                min_ranks=min_ranks,
                regroup_s=regroup_s,
                exchange_s=timeout_s,
                start_s=start_timeout_s,
                silent_s=min(_SILENT_S, regroup_s),
            )
        )
        self.epoch = Epoch(number=-1, members=())
        """The one that this rank is in."""
        self._over_number = -1
        """Last of its epochs whose end the thread has seen."""
        self._left = False
        beside = self._agreement.records.beside(PrefixStore(_PREFIX, meeting.beside))
        self._watcher = HeartbeatThread(lambda: self._watch(beside), "pliant-elastic")

    @property
    def is_over(self) -> bool:
        """Whether this rank's epoch has been ended, as far as its thread knows. No communication."""
        return self._over_number == self.epoch.number

    def require_same(self, fingerprint: str) -> None:
        """Raise ValueError if the run that this rank comes to has another plan or model."""
        theirs = self._ask_store(lambda: self._agreement.agree_on(fingerprint))
        if theirs != fingerprint:
            self.leave()
            raise ValueError(
                f"rank {self.rank} comes with another plan or another model ({fingerprint}) than the elastic run "
                f"that it joins ({theirs}); start it with the same script and settings."
            )

    def agree(self, *, step: int, sound: bool, closing: bool) -> Epoch:
        """Call the epoch over, and return the next one, of which this rank is a member.

        Raises:
            CommError: Too few are left, the start was not complete in time, or the store is lost.

        """
        begin_s = time.monotonic()
        self._ask_store(lambda: self._agreement.announce(step=step, sound=sound, closing=closing, now_s=begin_s))
        while True:
            epoch = self._ask_store(lambda: self._agreement.poll(time.monotonic()))
            if epoch is not None:
                self.epoch = epoch
                return epoch
            time.sleep(_POLL_S)

    def connect(self) -> ProcessGroupComm:
        """Return a comm over the epoch's members, ranks in their order. Collective; raises CommError."""
        limit = Limit(timeout_s=self._timeout_s)
        epoch, members = self.epoch, [member.rank for member in self.epoch.members]
        numbers: dict[tuple[int, ...], Iterator[int]] = defaultdict(count)  # members make common groups in one order
        here = members.index(self.rank)
        self._sealed.clear()

        def make(ranks: Sequence[int] | None) -> ProcessGroup:
            chosen = tuple(range(len(members))) if ranks is None else tuple(ranks)
            name = f"{_PREFIX}-{epoch.number}-{epoch.id}-{'.'.join(map(str, chosen))}-{next(numbers[chosen])}"
            store = SealedStore(self._store, self._seal, name, self._timeout_s)
            self._sealed.append(store)
            try:
                return gloo_group(
                    store, chosen.index(here), len(chosen), name, self._timeout_s, loopback=self._loopback
                )
            except RuntimeError as error:
                text = f"rank {self.rank}: no connection among ranks {members}: {str(error).splitlines()[0]}"
                raise CommError(text, rank=here, op="connect") from None

        return ProcessGroupComm(make(None), limit=limit, make_group=make, owns_group=True)

    def vouch(self, part: str, digest: str) -> None:
        """Sign, as the epoch's first member, the digest of what it hands to those that come."""
        self._ask_store(lambda: self._agreement.words.vouch(part, digest))

    def require_vouched(self, part: str, digest: str) -> None:
        """Raise CommError unless the epoch's first member has signed this digest; wait until it has said which.

        Nothing that was received may be used before.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while (theirs := self._ask_store(lambda: self._agreement.words.vouched(part))) is None:
            if time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
        if theirs != digest:
            first = self.epoch.members[0].rank
            said = f"has signed {theirs}" if theirs else f"has signed nothing within {self._timeout_s:g}s"
            raise NotSignedError(
                f"rank {self.rank} was sent {part} with the digest {digest}, but rank {first}, whose they should be, "
                f"{said}; they were not loaded. Somebody is between the "
                "ranks, or their memory or network is broken.",
                rank=[member.rank for member in self.epoch.members].index(self.rank),
                op="regroup",
            )

    def meet(self) -> None:
        """Say that this rank has met the members of its epoch, and wait until all have.

        Raises:
            CommError: One could not, or is lost.

        """
        words = self._agreement.words
        self._ask_store(words.note_met)
        while left := self._ask_store(words.not_met):
            for member in left:
                if self._ask_store(lambda member=member: self._has_given_up(words, member)):
                    raise CommError(
                        f"rank {self.rank}: rank {member.rank} is lost, or tries again, and has not met the others.",
                        rank=[each.rank for each in self.epoch.members].index(self.rank),
                        op="regroup",
                    )
            time.sleep(_POLL_S)

    def _has_given_up(self, words: EpochMessages, member: MemberRecord) -> bool:
        return words.asks_again(member) or self._agreement.has_lost(member, time.monotonic())

    def finalize(self) -> None:
        """Record that the run has ended, so that no rank begins it again alone."""
        self._ask_store(self._agreement.finalize)

    def leave(self) -> None:
        """Announce that this rank leaves, so that no rank waits for it, and end the thread. Later calls do nothing."""
        if self._left:
            return
        self._left = True
        self.stop()
        self.join(2 * BEAT_S)
        if self._store_lost:
            return
        with suppress(RuntimeError):  # without a store nobody can be told, and nobody waits for long either
            self._agreement.leave()

    def stop(self) -> None:
        """End the thread without an announcement. Takes no lock and waits for nobody."""
        self._watcher.stop()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._watcher.join(timeout_s)

    def _rendezvous(self, group: ProcessGroup | None, timeout_s: float) -> Rendezvous:
        try:
            return rendezvous_for(group, timeout_s)
        except RuntimeError as error:
            raise CommError(
                f"nobody hosts the store that the ranks of this elastic run meet in, after {timeout_s:g}s. Its host is "
                "lost or late: rank 0, unless a launcher or torchrun's agent hosts it; start it, or give relax() a "
                f"longer start_timeout_s. Cause: {str(error).splitlines()[0]}",
                rank=-1,
                op="start",
            ) from error

    def _watch(self, beside: Records) -> None:
        self._agreement.heartbeat(beside)
        number = self.epoch.number
        if self._agreement.is_over(beside):
            self._over_number = number

    def _ask_store(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except MembershipError as error:
            raise CommError(str(error), rank=self.rank, op="regroup") from None
        except RuntimeError as error:
            self._store_lost = True
            raise CommError(
                "the store that the ranks of this elastic run meet in does not answer, so they cannot agree on who "
                f"goes on ({str(error).splitlines()[0]}). Its host is lost: rank 0, unless a launcher or torchrun's "
                "agent hosts it. Host it outside of the ranks (docs/elastic.md), and start again from a checkpoint.",
                rank=self.rank,
                op="regroup",
            ) from error
