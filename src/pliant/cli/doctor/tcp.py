"""Settings of TCP that hold up long links, and their cures."""

from collections.abc import Sequence

import numpy as np

from pliant.netmodel import Links, retransmission_timeout_s, slow_start_s
from pliant.network.rank_facts import RankFacts
from pliant.network.tcp_settings import IN_FLIGHT
from pliant.spec import Topology
from pliant.spec.units import format_bytes, format_rate, format_time

__all__ = ["tcp_findings"]

_LONG_TRIP_S = 0.01
_ENOUGH = 2.0
"""Buffer over rate and round trip with which a connection fills a link."""
_MESSAGE_BYTES = 4_000_000
"""Message for which the cost of slow start is told."""
_DEFAULTS = {"tcp_wmem": "4096 16384", "tcp_rmem": "4096 131072"}


def tcp_findings(facts: Sequence[RankFacts], topology: Topology) -> list[str]:
    """Return a sentence for each setting of a host that makes a connection slow on these links, with its cure."""
    delays_s = Links(topology).delays_s
    trip_s = float((delays_s + delays_s.T).max())
    rate = max(min(host.send_bytes_per_s, host.receive_bytes_per_s) for host in topology.hosts)
    if trip_s < _LONG_TRIP_S or len(topology.hosts) < 2:
        return []
    found: list[str] = []
    hosts = {each.host: each for each in facts}
    lost_s = float(slow_start_s(_MESSAGE_BYTES, rate or np.inf, trip_s, connections=topology.connections))
    restarting = [name for name, each in hosts.items() if each.slow_start_after_idle]
    if restarting and lost_s > 0:
        found.append(
            f"On {', '.join(restarting)} a connection starts slowly again after a pause of about "
            f"{format_time(float(retransmission_timeout_s(trip_s)))}, so that by the model "
            f"{format_bytes(_MESSAGE_BYTES)} then take {format_time(lost_s)} longer: `sysctl -w "
            "net.ipv4.tcp_slow_start_after_idle=0` as root, in the network namespace of the ranks (of each container)."
        )
    wanted = int(_ENOUGH * rate * trip_s)
    for name, size in (("tcp_wmem", "send_buffer_bytes"), ("tcp_rmem", "receive_buffer_bytes")):
        small = {host: getattr(each, size) for host, each in hosts.items() if 0 < getattr(each, size) < wanted}
        if small:
            least = min(small.values())
            found.append(
                f"On {', '.join(small)} net.ipv4.{name} ends at {least} bytes, so that a connection carries at most "
                f"about {format_rate(IN_FLIGHT * least / trip_s)} over a round trip of {format_time(trip_s)}: "
                f"`sysctl -w net.ipv4.{name}='{_DEFAULTS[name]} {wanted}'` as root, in the network namespace of the "
                "ranks (of each container), or several connections."
            )
    return found
