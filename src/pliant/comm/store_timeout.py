"""A limit for how long a connection to the store may keep its caller waiting, which torch has no setting for."""

import os
import socket
import stat
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress

__all__ = ["answers_within"]


@contextmanager
def answers_within(limit_s: float) -> Generator[None]:
    """Let calls fail that get no answer for so long, on every connection that this process opens in the block.

    torch's store waits for ever for an answer to a `check`, an `add` or a `set`: where the network between is cut, no
    packet says that the other end is gone. Then the call raises a RuntimeError, and the connection is of no use any
    more. Waiting for a key has torch's own timeout, and is not touched.
    """
    before = set(_sockets())
    yield
    whole_s, part_s = divmod(limit_s, 1.0)
    limit = struct.pack("ll", int(whole_s), int(part_s * 1e6))
    for number, file in _sockets().items():
        if number in before:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _sockets() -> dict[int, int]:
    """Return the number of each open socket, which no other has, and a file of this process that is it."""
    found: dict[int, int] = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # what listed them is closed again
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode):
                found[about.st_ino] = int(name)
    return found
