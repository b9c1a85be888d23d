"""Records that ranks leave in a store where strangers may write too: signed, or not believed."""

import hashlib
import hmac
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from pliant.spec.files import from_json, to_json

__all__ = ["KeyValueStore", "Records", "Seal", "digest_of"]

R = TypeVar("R")

_MOST_BYTES = 1 << 20
_MOST_KEPT = 4096
_log = logging.getLogger("pliant")


class KeyValueStore(Protocol):
    """The part of a torch store that is used; every call is atomic."""

    def set(self, key: str, value: str) -> None:
        """Write a value, signed, under a key."""
        ...

    def get(self, key: str) -> bytes:
        """Read a key that is there."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Say whether all keys are there."""
        ...

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Write if the expected value is there, or, where '' is expected, nothing; return what is there then."""
        ...


class Seal:
    """HMAC-SHA256 under a key that is made of a secret and the name of the run.

    A signature is of the place as well as of what stands there, so that nothing holds that was copied from another
    key of the store, which is to say, of another rank or epoch, or from another run.

    Args:
        secret: What all ranks of the run know and strangers do not. Without one anybody can sign.
        run: Name of the run, so that a secret may be used for several.

    """

    def __init__(self, secret: bytes = b"", run: str = "") -> None:
        self._key = hmac.digest(secret, b"pliant elastic run " + run.encode(), "sha256")

    def sign(self, place: str, body: bytes) -> bytes:
        """Return a body with its signature before it."""
        return self._mac(place, body) + b" " + body

    def body(self, place: str, raw: bytes) -> bytes | None:
        """Return the body that was signed for this place, or None. The comparison takes constant time."""
        mac, _, body = raw.partition(b" ")
        return body if hmac.compare_digest(mac, self._mac(place, body)) else None

    def _mac(self, place: str, body: bytes) -> bytes:
        # The length parts place and body: no other pair of them gives the same bytes.
        where = place.encode()
        return hmac.digest(self._key, b"%d " % len(where) + where + body, "sha256").hex().encode()


class Records:
    """Signed records on a board. What is not signed, not whole or not a record counts as not there, and is logged once.

    Args:
        kv_store: The store, under a prefix of this run.
        seal: Signs and verifies.
        refused: Keys that were logged; shared by those that read through other connections.

    """

    def __init__(self, kv_store: KeyValueStore, seal: Seal, refused: set[str] | None = None) -> None:
        self._kv_store, self._seal = kv_store, seal
        self.refused: set[str] = set() if refused is None else refused
        self._read_before: dict[tuple[type[Any], str], tuple[bytes, Any]] = {}

    def beside(self, kv_store: KeyValueStore) -> "Records":
        """Return the same over another connection, for another thread."""
        return Records(kv_store, self._seal, self.refused)

    def put(self, key: str, record: Any) -> None:
        """Write a record, whatever stood there."""
        text = self._text(key, record)
        self._keep(key, text.encode(), record)
        self._kv_store.set(key, text)

    def get(self, kind: type[R], key: str) -> R | None:
        """Return the record at a key, or None."""
        if not self._kv_store.check([key]):
            return None
        return self._read(kind, key, self._kv_store.get(key))

    def first(self, kind: type[R], key: str, record: R, holds: Callable[[R], bool] = lambda _: True) -> R | None:
        """Write a record unless one that holds is there, and return which it is; junk is replaced.

        None if a stranger writes at the same moment: ask again.
        """
        text = self._text(key, record)
        raw = self._kv_store.compare_set(key, "", text)
        found = self._read(kind, key, raw)
        if found is None or not holds(found):
            raw = self._kv_store.compare_set(key, cast(str, raw), text)  # junk as it is: torch takes bytes as well
            found = self._read(kind, key, raw)
        return found if found is not None and holds(found) else None

    def refuse(self, key: str, why: str) -> None:
        """Log, once for each key, that what stands there is ignored."""
        if key not in self.refused:
            self.refused.add(key)
            _log.warning("what stands at %r in the store of this elastic run is ignored: %s", key, why)

    def _text(self, key: str, record: Any) -> str:
        return self._seal.sign(key, to_json(record).encode()).decode()

    def _read(self, kind: type[R], key: str, raw: bytes) -> R | None:
        before, record = self._read_before.get((kind, key), (b"", None))
        if record is not None and before == raw:
            return record
        body = self._seal.body(key, raw) if len(raw) <= _MOST_BYTES else None
        if body is None:
            self.refuse(key, "it is not signed for this place with the secret of this run")
            return None
        try:
            record = from_json(kind, body.decode())
        except ValueError as error:
            self.refuse(key, str(error))
            return None
        self._keep(key, raw, record)
        return record

    def _keep(self, key: str, raw: bytes, record: Any) -> None:
        """Remember what a text says: most are read many times."""
        if len(self._read_before) == _MOST_KEPT:
            self._read_before.clear()
        self._read_before[type(record), key] = raw, record


def digest_of(record: Any) -> str:
    """Return 32 hexadecimal digits of SHA-256 of a record."""
    return hashlib.sha256(to_json(record).encode()).hexdigest()[:32]
