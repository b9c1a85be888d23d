"""Are the links what was asked for? Measured between live hosts, and held against it."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pliant.network import link_probe
from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent
from pliant.network.shaping import LEAST_BURST, burst_bytes
from pliant.spec import Topology

__all__ = ["LinkReport", "expected_bytes_per_s", "link_faults", "measure_links", "require_links"]

_TOLERANCE = 0.25
_SCHEDULER_S = 0.003  # what a busy machine may add to a round trip
_MIN_WINDOW_S = 0.5
_MIN_WINDOW_BURSTS = 3  # a slow link needs longer to say anything: its bucket may fill once more after a loss


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """Rates that one host measured towards the next, or the hosts of a rack together towards those of the next rack."""

    source: str
    target: str
    wanted_bytes_per_s: float
    """0 where nothing limits the link."""
    found_bytes_per_s: float
    wanted_round_trip_s: float
    found_round_trip_s: float


def expected_bytes_per_s(send: float, receive: float) -> float:
    """Return the rate of a flow from one host to another; 0 means not limited."""
    limits = [rate for rate in (send, receive) if rate]
    return min(limits, default=0.0)


def measure_links(
    topology: Topology, hosts: Sequence[Namespace], addresses: Sequence[str], burst: int = LEAST_BURST
) -> list[LinkReport]:
    """Measure each host's link to the next: round trips while all are idle, then rates while all send.

    With racks: each host's to the next one of its rack; then, of each rack, what some hosts send together to the next
    rack: as many as can fill the uplink, or as the smallest rack has. No more, since they never begin quite at once.
    """
    if not topology.racks:
        return _measure_rings(topology, [range(len(hosts))], hosts, addresses, burst)
    rack_of = topology.rack_of()
    groups = [[k for k, rack in enumerate(rack_of) if rack == g] for g in range(len(topology.racks))]
    found = _measure_rings(topology, groups, hosts, addresses, burst)
    if len(groups) < 2:
        return found
    across = list(zip(*groups, strict=False))[: _num_filling(topology)]  # one host of each rack
    shares = [r / len(across) for rack in topology.racks for r in (rack.send_bytes_per_s, rack.receive_bytes_per_s)]
    flows = _measure_rings(topology, across, hosts, addresses, burst, shares)
    for g, rack in enumerate(topology.racks):
        following = topology.racks[(g + 1) % len(groups)]
        mine = flows[g :: len(groups)]
        found.append(
            LinkReport(
                source=rack.name,
                target=following.name,
                wanted_bytes_per_s=_shared_rate(mine, rack.send_bytes_per_s, following.receive_bytes_per_s),
                found_bytes_per_s=sum(flow.found_bytes_per_s for flow in mine),
                wanted_round_trip_s=mine[0].wanted_round_trip_s,
                found_round_trip_s=mine[0].found_round_trip_s,
            )
        )
    return found


def _num_filling(topology: Topology) -> int:
    """Return how many flows between hosts fill the fastest uplink; 1 where none can."""
    hosts = [rate for host in topology.hosts for rate in (host.send_bytes_per_s, host.receive_bytes_per_s) if rate]
    fastest = max(max(rack.send_bytes_per_s, rack.receive_bytes_per_s) for rack in topology.racks)
    return max(1, math.ceil(fastest / min(hosts))) if hosts else 1


def _shared_rate(flows: Sequence[LinkReport], send: float, receive: float) -> float:
    """Return the rate of several flows through one uplink; 0 means not limited."""
    own = [flow.wanted_bytes_per_s for flow in flows]
    return min([rate for rate in (send, receive, sum(own) if all(own) else 0.0) if rate], default=0.0)


def _measure_rings(
    topology: Topology,
    rings: Sequence[Sequence[int]],
    hosts: Sequence[Namespace],
    addresses: Sequence[str],
    burst: int,
    shares: Sequence[float] = (),
) -> list[LinkReport]:
    """Measure, all at once, from each host of each ring to the next of the same ring, and report in this order.

    Args:
        topology: Whose hosts they are.
        rings: Indices of hosts; each host in one ring at most.
        hosts: All.
        addresses: Theirs.
        burst: The least depth of their buckets.
        shares: Rates that flows may have to do with besides their hosts', in bytes/s; 0 means not limited.

    """
    pairs = [(k, ring[(i + 1) % len(ring)]) for ring in rings if len(ring) > 1 for i, k in enumerate(ring)]
    if not pairs:
        return []
    wanted = {
        b: expected_bytes_per_s(topology.hosts[a].send_bytes_per_s, topology.hosts[b].receive_bytes_per_s)
        for a, b in pairs
    }  # by who receives
    limits = [rate for rate in (*wanted.values(), *shares) if rate]
    window_s = max([_MIN_WINDOW_S, *(_MIN_WINDOW_BURSTS * burst_bytes(rate, burst) / rate for rate in limits)])
    with ExitStack() as stack:
        probes: list[subprocess.Popen[str]] = []
        for a, b in pairs:
            skip_bytes = 2 * burst_bytes(wanted[a], burst) if wanted[a] else 0
            probes.append(_start(hosts[a], [addresses[a], addresses[b], str(skip_bytes), str(window_s)]))
            stack.callback(_stop, probes[-1])
        _collect(probes)  # all listen
        round_trips_s = _collect(probes)
        received = dict(
            zip([a for a, _ in pairs], _collect(probes), strict=True)
        )  # none leaves before all have figures
    return [
        LinkReport(
            source=topology.hosts[a].name,
            target=topology.hosts[b].name,
            wanted_bytes_per_s=wanted[b],
            found_bytes_per_s=received[b],
            wanted_round_trip_s=topology.hosts[a].delay_s + topology.hosts[b].delay_s,
            found_round_trip_s=round_trip_s,
        )
        for (a, b), round_trip_s in zip(pairs, round_trips_s, strict=True)
    ]


def _start(host: Namespace, settings: Sequence[str]) -> "subprocess.Popen[str]":
    # The file, not the module: without our package, and without site-packages, it starts in some 15 ms.
    return subprocess.Popen(
        [*host.prefix(), sys.executable, "-I", "-S", str(Path(link_probe.__file__)), *settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(os.getpid()),
    )


def _stop(probe: "subprocess.Popen[str]") -> None:
    probe.kill()  # it has said all, or something went wrong
    probe.communicate()


def _collect(probes: Sequence["subprocess.Popen[str]"]) -> list[float]:
    """Collect one figure of each probe, then let all go on together."""
    figures: list[float] = []
    for probe in probes:
        line = probe.stdout.readline() if probe.stdout is not None else ""
        if not line:
            error = (probe.stderr.read() if probe.stderr is not None else "").strip().rpartition("\n")[2]
            raise CannotEmulateError(f"a link of the emulated hosts could not be measured: {error or 'no answer'}.")
        figures.append(float(json.loads(line)))
    for probe in probes:
        if probe.stdin is not None:
            probe.stdin.write("go\n")
            probe.stdin.flush()
    return figures


def link_faults(reports: Sequence[LinkReport]) -> list[str]:
    """Return a sentence for each link that is not what was asked for."""
    found: list[str] = []
    for r in reports:
        link = f"{r.source} -> {r.target}"
        if r.wanted_bytes_per_s and abs(r.found_bytes_per_s / r.wanted_bytes_per_s - 1) > _TOLERANCE:
            found.append(
                f"{link} carries {r.found_bytes_per_s * 8e-6:.3g} Mbit/s instead of {r.wanted_bytes_per_s * 8e-6:.3g}"
            )
        difference_s = r.found_round_trip_s - r.wanted_round_trip_s
        allowed_s = _TOLERANCE * r.wanted_round_trip_s
        if r.wanted_round_trip_s and not -allowed_s <= difference_s <= allowed_s + _SCHEDULER_S:
            found.append(
                f"{link} answers in {r.found_round_trip_s * 1e3:.1f} ms instead of {r.wanted_round_trip_s * 1e3:.1f}"
            )
    return found


def require_links(reports: Sequence[LinkReport]) -> None:
    """Raise a RuntimeError that names each link that is more than a quarter off."""
    if wrong := link_faults(reports):
        raise RuntimeError(
            "the emulated links are not what was asked for: " + "; ".join(wrong) + ". The machine may be busy, or the "
            "sum of all rates too high for it (about 4 Gbit/s); wait, lower the rates, or leave the check out "
            "(pliant emulate --no-check)."
        )
