"""Secret that the ranks of an elastic run share, in a file that nobody else may read."""

import ipaddress
import os
import socket
import stat
from pathlib import Path

from pliant.spec.reading import read_bytes

__all__ = ["LEAST_BYTES", "is_loopback", "read_secret"]

LEAST_BYTES = 16
_MOST_BYTES = 4096
_CURE = "make one, for each run, with: (umask 077; openssl rand -hex 32 > run.secret)"


def read_secret(path: str | Path) -> bytes:
    """Return the content of a file, without blanks at its ends.

    Raises:
        ValueError: Others may read or write it, another user owns it, or it is too short, too long or no file.
        OSError: It is not there, or may not be read.

    """
    raw = read_bytes(path, most_bytes=_MOST_BYTES).strip()
    found = Path(path).stat()
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(
            f"the secret in {path} may be read or written by others (mode {stat.S_IMODE(found.st_mode):o}), so it is "
            f"none; chmod 600 {path} if nobody has seen it, or {_CURE}."
        )
    if found.st_uid not in (0, os.geteuid()):
        raise ValueError(f"{path} belongs to user {found.st_uid}, who knows the secret; {_CURE}.")
    if len(raw) < LEAST_BYTES:
        raise ValueError(f"the secret in {path} has {len(raw)} bytes, but needs at least {LEAST_BYTES}; {_CURE}.")
    return raw


def is_loopback(host: str) -> bool:
    """Say whether all addresses of a host are this machine's own, which no other reaches."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    addresses = [ipaddress.ip_address(each[4][0]) for each in found]
    return bool(addresses) and all(address.is_loopback for address in addresses)
