"""A store in which only those who know a secret can leave something: what Gloo's ranks tell each other passes here."""

import time
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.signed_records import Seal

__all__ = ["SealedStore"]

_POLL_S = 0.01


class SealedStore(Store):
    """Signs what is set, and takes what is not signed for its key as not there yet.

    So the addresses at which the ranks of a group listen are theirs, and no stranger who writes into the store is
    connected to.

    Args:
        store: Where values are kept.
        seal: Signs and verifies.
        name: Of the group, never used twice: values of another group do not hold.
        timeout_s: How long to wait for a key.

    """

    def __init__(self, store: Store, seal: Seal, name: str, timeout_s: float) -> None:
        super().__init__()
        self._store, self._seal, self._name, self._timeout_s = store, seal, name, timeout_s

    def set(self, key: str, value: str | bytes) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write a value under a key."""
        body = value.encode() if isinstance(value, str) else bytes(value)
        place = self._place(key)
        self._store.set(place, self._seal.sign(place, body))  # pyright: ignore[reportArgumentType]  bytes are taken

    def get(self, key: str) -> bytes:
        """Wait for a value. Raises RuntimeError after the timeout."""
        deadline_s = time.monotonic() + self._timeout_s
        while (body := self._body(key)) is None:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"nobody of this run has set {key!r} within {self._timeout_s:g}s")
            time.sleep(_POLL_S)
        return body

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for several. Raises RuntimeError after the timeout."""
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline_s = time.monotonic() + limit_s
        while missing := [key for key in keys if self._body(key) is None]:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"nobody of this run has set {missing[0]!r} within {limit_s:g}s")
            time.sleep(_POLL_S)

    def check(self, keys: Sequence[str]) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Say whether all are there."""
        return all(self._body(key) is not None for key in keys)

    def _body(self, key: str) -> bytes | None:
        place = self._place(key)
        return self._seal.body(place, self._store.get(place)) if self._store.check([place]) else None

    def _place(self, key: str) -> str:
        return f"{self._name}/{key}"
