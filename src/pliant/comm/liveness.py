"""Heartbeats of all ranks, which name the right one when a wait was in vain."""

import json
import math
import threading
import time
import weakref
from collections.abc import Sequence

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.heartbeat_thread import BEAT_S, HeartbeatThread
from pliant.comm.progress import Progress, Told, late_ranks
from pliant.comm.verdict import Verdict

__all__ = ["HeartbeatMonitor"]

_LEAST_PAUSE_S = 0.001
_LEAST_SILENT_S, _MOST_SILENT_S = 2.0, 30.0


class HeartbeatMonitor:
    """Heartbeats of all ranks, through the store with which torch made its group.

    A thread adds 1 to this rank's counter twice a second. A process that is killed or stopped no longer counts; one
    that computes for long still does. If the store itself does not answer, its host is lost: rank 0, unless torchrun's
    agent hosts it. A rank whose wait has timed out also asks how far the others have come, and each rank's thread
    writes that down: so a rank that is alive and late is told from one that is lost.

    The first rank that finds others silent, or late, records it, and all name the same: a survivor that ends closes its
    own connections, and the store if it hosts that, so that later ranks would otherwise name the survivor.

    Args:
        store: A connection that nothing else uses, since a call on it may block.
        rank: This rank.
        size: Ranks that count.

    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._lock = threading.Lock()  # one connection, one request at a time
        self._verdict = Verdict()
        self._progress: weakref.WeakValueDictionary[str, Progress] = weakref.WeakValueDictionary()
        # Collective, so that all ranks have the same number: an earlier run's verdict is not this one's.
        self._number = store.add(f"runs of {rank}", 1)
        self._asked = f"asked {self._number}"
        self._answered = 0
        self._num_heard = 0
        """Answers of the store; as long as some come, it is not dead."""
        self._beat()  # before anybody can ask
        self._beats = HeartbeatThread(self._beat, "pliant-liveness")
        self._askers: list[threading.Thread] = []

    def follow(self, name: str, progress: Progress) -> None:
        """Tell other ranks how far this rank has come in a group, which all its members call by this name."""
        with self._lock:
            self._progress[name] = progress

    def blame(self, name: str, waited_s: float, limit_s: float) -> Verdict:
        """Return the ranks that caused the failure of a group's communication after so many seconds.

        A broken connection is a sign by itself. After a timeout a rank is called lost only if it is silent for a tenth
        of it, since long computation may hold up the rank's own thread.
        """
        silent_s = _silence_s(limit_s) if waited_s >= limit_s else _LEAST_SILENT_S
        found: list[Verdict] = []
        # A dead store may block its caller for long: ask from a thread that can be left behind. A slow one answers.
        asker = threading.Thread(
            target=lambda: found.append(self._judge(name, silent_s)),
            name="pliant-liveness-asks",
            daemon=True,
        )
        self._askers.append(asker)
        asker.start()
        num_quiet, most_quiet = 0, math.ceil((silent_s + 2 * _LEAST_SILENT_S) / BEAT_S)
        while asker.is_alive() and num_quiet < most_quiet:
            num_heard = self._num_heard
            asker.join(BEAT_S)  # of the time for which a busy machine holds up this process, one wait counts
            num_quiet = num_quiet + 1 if num_heard == self._num_heard else 0
        return found[0] if found else self._known or Verdict(gone=(0,), by=self._rank)

    def meet(self, name: str, ranks: Sequence[int], limit_s: float) -> None:
        """Wait until all these ranks have come to a place that they call by this name, which is used once.

        A rank that has not begun this run is waited for; one that has, and is silent for as long as `blame` asks for
        after a timeout, is lost, and all name it.

        Raises:
            RuntimeError: A rank is lost, or has not come in time, or the store is.

        """
        key = f"meeting {self._number} {name}"
        came = self._add(key, 1)
        start_s, pause_s = time.monotonic(), _LEAST_PAUSE_S
        before, look_s = dict[int, int](), start_s + BEAT_S  # where all come at once the store is asked nothing else
        while came < len(ranks):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, BEAT_S)
            came = self._add(key, 0)
            if self._known is not None:
                raise RuntimeError(f"of {tuple(ranks)}, {self._known.gone or tuple(self._known.late)} are lost")
            now_s = time.monotonic()
            if now_s > look_s:
                after = self._lives(ranks)
                if gone := tuple(rank for rank in before if before[rank] == after[rank]):
                    self._tell(Verdict(gone=gone, by=self._rank))
                before, look_s = after, now_s + _silence_s(limit_s)
            if now_s - start_s > limit_s:
                raise RuntimeError(f"{came} of {len(ranks)} ranks have come within {limit_s:g}s")

    @property
    def verdict(self) -> Verdict | None:
        """Ranks that caused the failure, once that is known."""
        return self._known

    def absent(self) -> tuple[int, ...]:
        """Return the ranks that have not come to the beginning of this run."""
        try:
            return tuple(r for r in range(self._size) if self._add(f"runs of {r}", 0) < self._number)
        except RuntimeError:
            return ()

    def stop(self) -> None:
        """Stop counting. Takes no lock and waits for nobody."""
        self._beats.stop()

    def close(self) -> None:
        """Count no more, and wait for the threads; one that the store holds up is left behind."""
        self.stop()
        self._beats.join(2 * BEAT_S)
        for asker in self._askers:
            if asker is not threading.current_thread():
                asker.join(timeout=2 * BEAT_S)

    @property
    def _known(self) -> Verdict | None:
        return self._verdict if self._verdict.by >= 0 else None

    def _judge(self, name: str, silent_s: float) -> Verdict:
        try:
            if self._known is None:
                found = self._look(name, silent_s)
                if found.by >= 0 and self._known is None:
                    self._tell(found)
                    time.sleep(2 * BEAT_S)  # until all have read it: the store may end with this rank
        except RuntimeError:  # the connection is gone, and with it the process that hosted the store
            return self._known or Verdict(gone=(0,), by=self._rank)
        return self._verdict

    def _look(self, name: str, silent_s: float) -> Verdict:
        question, before = self._add(self._asked, 1), self._counts()
        time.sleep(silent_s)
        after = self._counts()
        others = [r for r in range(self._size) if r != self._rank]
        if gone := tuple(r for r in others if before[r] == after[r]):
            return Verdict(gone=gone, by=self._rank)
        told = {r: answer for r in range(self._size) if (answer := self._answer_of(r, question)) is not None}
        late = late_ranks(self._rank, name, told)
        return Verdict(late=late, by=self._rank) if late else Verdict()

    def _tell(self, found: Verdict) -> None:
        with self._lock:
            self._verdict = Verdict.read(self._store.compare_set(self._key, "", found.text))

    def _lives(self, ranks: Sequence[int]) -> dict[int, int]:
        """Return the counters of those of the other ranks that have begun this run."""
        absent, counts = self.absent(), self._counts()
        return {rank: counts[rank] for rank in ranks if rank != self._rank and rank not in absent}

    def _answer_of(self, rank: int, question: int) -> Told | None:
        key = f"at {self._number} {question} {rank}"
        with self._lock:
            told = json.loads(self._store.get(key)) if self._store.check([key]) else None
            self._num_heard += 1
            return told

    @property
    def _key(self) -> str:
        return f"lost {self._number}"

    def _counts(self) -> list[int]:
        return [self._add(str(rank), 0) for rank in range(self._size)]

    def _add(self, key: str, number: int) -> int:
        """Add to a counter in the store, and return it."""
        with self._lock:
            count = self._store.add(key, number)
            self._num_heard += 1
            return count

    def _beat(self) -> None:
        with self._lock:
            self._store.add(str(self._rank), 1)
            self._num_heard += 1
            if self._known is None and self._store.check([self._key]):
                self._verdict = Verdict.read(self._store.get(self._key))
            asked = self._store.add(self._asked, 0)
            if asked > self._answered:
                told = json.dumps({name: each.told for name, each in self._progress.items()})
                for question in range(self._answered + 1, asked + 1):
                    self._store.set(f"at {self._number} {question} {self._rank}", told)
                self._answered = asked


def _silence_s(limit_s: float) -> float:
    """Return the seconds without a heartbeat after which a rank that was waited for so long is lost."""
    return min(max(_LEAST_SILENT_S, limit_s / 10), _MOST_SILENT_S)
