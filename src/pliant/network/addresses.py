"""Addresses and names of emulated hosts."""

import re

from pliant.spec import Topology

__all__ = ["MAX_HOSTS", "PREFIX", "SWITCH", "address_of", "hosts_file"]

_NETWORK = "10.77.0"  # exists inside the namespaces only
PREFIX = f"{_NETWORK}.0/24"
"""The network of all hosts."""
SWITCH = f"{_NETWORK}.254"
"""Address on the switch, which is no rank's host."""
MAX_HOSTS = 250
"""Most hosts that have an address."""
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")


def address_of(host_index: int) -> str:
    """Return a host's address inside the emulated network."""
    return f"{_NETWORK}.{host_index + 1}"


def hosts_file(topology: Topology) -> str:
    """Return a hosts file for torch's store, which looks up connecting addresses; unknown ones become numbers."""
    named = {address_of(k): host.name for k, host in enumerate(topology.hosts)}
    named = {address: name if _HOST_NAME.fullmatch(name) else f"host-{address}" for address, name in named.items()}
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for address, name in {SWITCH: "switch", **named}.items():
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]  # as a socket for both versions of IP has it
    return "\n".join(lines) + "\n"
