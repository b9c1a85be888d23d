"""A group of ranks that is made anew when one is lost or comes: the agreement, its signs of life, and the comm."""

import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TypeVar

from torch.distributed import PrefixStore, ProcessGroup, Store  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.base import CommError
from pliant.comm.membership import Agreement, Epoch, MembershipError
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.torch_private import gloo_group, meeting_of

__all__ = ["Party"]

T = TypeVar("T")

_BEAT_S = 0.5
_POLL_S = 0.02
_COLLECT_S = 1.0
_SILENT_S = 5.0
_PREFIX = "pliant-elastic"


class Party:
    """This rank's place among those that go on.

    A thread gives a sign of life twice a second and looks whether somebody has called the epoch over, so that looking
    at `is_over` costs no communication.

    Args:
        group: A group of a world of threads, or None for the world of torchrun's environment.
        min_ranks: Fewest that may go on.
        regroup_s: Longest wait for members that live but do not come.
        timeout_s: Longest that one communication, or the beginning, may take.

    """

    def __init__(self, group: ProcessGroup | None, *, min_ranks: int, regroup_s: float, timeout_s: float) -> None:
        meeting = meeting_of(group, timeout_s)
        self.rank = meeting.rank
        """This rank's number in the world that it was started for."""
        self._timeout_s, self._loopback = timeout_s, meeting.loopback
        self._store = PrefixStore(_PREFIX, meeting.store)
        if not meeting.loopback:
            for store in (meeting.store, meeting.beside):
                store.set_timeout(timedelta(seconds=regroup_s))
        self._agreement = self._asking(
            lambda: Agreement(
                self._store,
                rank=meeting.rank,
                size=meeting.size,
                min_ranks=min_ranks,
                regroup_s=regroup_s,
                start_s=timeout_s,
                silent_s=min(_SILENT_S, regroup_s),
            )
        )
        self.epoch = Epoch(number=-1, members=())
        """The one that this rank is in."""
        self._over_number = -1
        """The last of its epochs that the watcher has seen called over."""
        self._stop = threading.Event()
        watch = PrefixStore(_PREFIX, meeting.beside)
        self._watcher = threading.Thread(target=self._watch, args=(watch,), name="pliant-elastic", daemon=True)
        self._watcher.start()

    @property
    def is_over(self) -> bool:
        """Whether somebody has called this rank's epoch over, as far as its watcher knows. No communication."""
        return self._over_number == self.epoch.number

    def require_same(self, fingerprint: str) -> None:
        """Raise ValueError if the run that this rank comes to has another plan or model."""
        theirs = self._asking(lambda: self._agreement.agree_on(fingerprint))
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
        begin_s, collected = time.monotonic(), False
        self._asking(lambda: self._agreement.announce(step=step, sound=sound, closing=closing, now_s=begin_s))
        while True:
            epoch = self._asking(lambda: self._agreement.poll(time.monotonic()))
            if epoch is not None:
                self.epoch = epoch
                return epoch
            time.sleep(_POLL_S)
            if not collected and time.monotonic() - begin_s > _COLLECT_S:
                # Connections close, and free those who wait at the other end, when nobody holds their group: should a
                # cycle of objects hold it, it ends here.
                collected = gc.collect() >= 0

    def connect(self) -> ProcessGroupComm:
        """Return a comm over the epoch's members, ranks in their order. Collective; raises CommError."""
        number, members = self.epoch.number, [member.rank for member in self.epoch.members]
        numbers: dict[tuple[int, ...], Iterator[int]] = defaultdict(count)  # members make common groups in one order
        here = members.index(self.rank)

        def make(ranks: Sequence[int] | None) -> ProcessGroup:
            chosen = tuple(range(len(members))) if ranks is None else tuple(ranks)
            name = f"{_PREFIX}-{number}-{'.'.join(map(str, chosen))}-{next(numbers[chosen])}"
            store = PrefixStore(name, self._store)
            try:
                return gloo_group(
                    store, chosen.index(here), len(chosen), name, self._timeout_s, loopback=self._loopback
                )
            except RuntimeError as error:
                text = f"rank {self.rank}: no connection among ranks {members}: {str(error).splitlines()[0]}"
                raise CommError(text, rank=here, op="connect") from None

        return ProcessGroupComm(make(None), timeout_s=self._timeout_s, make_group=make, owns_group=True)

    def conclude(self) -> None:
        """Say that the run is over, so that nobody begins it anew alone."""
        self._asking(self._agreement.conclude)

    def leave(self) -> None:
        """Say good-bye, so that nobody waits for this rank, and end the watcher. A second call does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._watcher.join(timeout=2 * _BEAT_S)
        with suppress(RuntimeError):  # without a store nobody can be told, and nobody waits for long either
            self._agreement.leave()

    def _watch(self, store: Store) -> None:
        life = self._agreement.life
        while not self._stop.wait(_BEAT_S):
            try:
                store.add(f"beats of {life}", 1)
                number = self.epoch.number
                if store.check([f"over {number}"]):
                    self._over_number = number
            except RuntimeError:
                return  # no store: whoever needs it next says so

    def _asking(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except MembershipError as error:
            raise CommError(str(error), rank=self.rank, op="regroup") from None
        except RuntimeError as error:
            raise CommError(
                "the store that the ranks of this elastic run meet in does not answer, so they cannot agree on who "
                f"goes on ({str(error).splitlines()[0]}). Its host is lost: rank 0, unless a launcher or torchrun's "
                "agent hosts it. Host it outside of the ranks (docs/elastic.md), and start again from a checkpoint.",
                rank=self.rank,
                op="regroup",
            ) from error
