"""Settings of TCP that hold up long links, and their cures."""

from collections.abc import Sequence

from pliant.network.rank_facts import RankFacts
from pliant.spec import Topology
from pliant.spec.units import format_rate, format_time

__all__ = ["tcp_findings"]

_LONG_TRIP_S = 0.01
_IN_FLIGHT = 0.65
"""Part of the send buffer that is payload on its way; the rest is what the kernel needs to keep it."""
_ENOUGH = 2.0
"""Buffer over rate and round trip with which a connection fills a link."""
_DEFAULTS = {"tcp_wmem": "4096 16384", "tcp_rmem": "4096 131072"}


def tcp_findings(facts: Sequence[RankFacts], topology: Topology) -> list[str]:
    """Return a sentence for each setting of a host that makes a connection slow on these links, with its cure."""
    trip_s = sum(sorted(host.delay_s for host in topology.hosts)[-2:])
    rate = max(min(host.send_bytes_per_s, host.receive_bytes_per_s) for host in topology.hosts)
    if trip_s < _LONG_TRIP_S or len(topology.hosts) < 2:
        return []
    found: list[str] = []
    hosts = {each.host: each for each in facts}
    if restarting := [name for name, each in hosts.items() if each.slow_start_after_idle]:
        found.append(
            f"On {', '.join(restarting)} a connection starts slowly again after a pause of about "
            f"{format_time(trip_s + 0.2)}, which exchanges that are seconds apart pay each time: `sysctl -w "
            "net.ipv4.tcp_slow_start_after_idle=0` as root, in the network namespace of the ranks (of each container)."
        )
    wanted = int(_ENOUGH * rate * trip_s)
    for name, size in (("tcp_wmem", "send_buffer_bytes"), ("tcp_rmem", "receive_buffer_bytes")):
        small = {host: getattr(each, size) for host, each in hosts.items() if 0 < getattr(each, size) < wanted}
        if small:
            least = min(small.values())
            found.append(
                f"On {', '.join(small)} net.ipv4.{name} ends at {least} bytes, so that a connection carries at most "
                f"about {format_rate(_IN_FLIGHT * least / trip_s)} over a round trip of {format_time(trip_s)}: "
                f"`sysctl -w net.ipv4.{name}='{_DEFAULTS[name]} {wanted}'` as root, in the network namespace of the "
                "ranks (of each container), or several connections."
            )
    return found
