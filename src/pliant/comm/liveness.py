"""Who is alive: each rank counts up in the store, and after a failure the silent ones are named."""

import threading
import time

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

__all__ = ["Liveness"]

_BEAT_S = 0.5


class Liveness:
    """Signs of life of all ranks, through the store that torch rendezvoused with.

    A thread adds 1 to this rank's counter twice a second. A process that is killed or stopped no longer counts; one
    that computes for long still does. If the store itself does not answer, its host is lost: rank 0, unless
    torchrun's agent hosts it.

    Whoever finds ranks silent first writes that down, and everybody names the same: a survivor that ends takes its own
    connections with it, and the store if it hosts that, so that those who notice later would blame it.

    Args:
        store: A connection that nobody else uses, since a call on it may block.
        rank: This rank.
        size: Ranks that count.

    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._lock = threading.Lock()  # one connection, one request at a time
        self._stop = threading.Event()
        self._verdict: tuple[int, ...] = ()
        # Collective, so that all ranks have the same number: an earlier run's verdict is not this one's.
        self._key = f"lost {store.add(f'runs of {rank}', 1)}"
        self._beat()  # before anybody can ask
        self._thread = threading.Thread(target=self._count, name="pliant-liveness", daemon=True)
        self._thread.start()

    def lost(self, wait_s: float = 2.0) -> tuple[int, ...]:
        """Return the ranks that gave no sign of life for `wait_s` seconds, or that others have found so before."""
        found: list[tuple[int, ...]] = []
        # A dead store may block its caller for long: ask from a thread that can be left behind.
        asker = threading.Thread(target=lambda: found.append(self._judge(wait_s)), daemon=True)
        asker.start()
        asker.join(3 * wait_s)
        return found[0] if found else self._verdict or (0,)

    def close(self) -> None:
        """Stop counting."""
        self._stop.set()
        self._thread.join(timeout=2 * _BEAT_S)

    def _judge(self, wait_s: float) -> tuple[int, ...]:
        try:
            if not self._verdict:
                silent = self._silent(wait_s)
                if silent and not self._verdict:
                    with self._lock:
                        self._verdict = _ranks(self._store.compare_set(self._key, "", ",".join(map(str, silent))))
                    time.sleep(2 * _BEAT_S)  # until all have read it: the store may end with this rank
        except RuntimeError:  # the connection is gone, and with it the process that hosted the store
            return self._verdict or (0,)
        return tuple(rank for rank in self._verdict if rank != self._rank)

    def _silent(self, wait_s: float) -> tuple[int, ...]:
        before = self._counts()
        time.sleep(wait_s)
        after = self._counts()
        return tuple(r for r in range(self._size) if r != self._rank and before[r] == after[r])

    def _counts(self) -> list[int]:
        with self._lock:
            return [self._store.add(str(rank), 0) for rank in range(self._size)]

    def _beat(self) -> None:
        with self._lock:
            self._store.add(str(self._rank), 1)
            if not self._verdict and self._store.check([self._key]):
                self._verdict = _ranks(self._store.get(self._key))

    def _count(self) -> None:
        while not self._stop.wait(_BEAT_S):
            try:
                self._beat()
            except RuntimeError:
                return  # no store, no news; whoever asks finds the same


def _ranks(verdict: bytes) -> tuple[int, ...]:
    return tuple(int(rank) for rank in verdict.decode().split(","))
