"""Check of emulated links: rates measured between live hosts against the requested ones."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.network import link_probe
from pliant.network.feasible import carried_bytes_per_s
from pliant.network.link_flows import Flow, expected_bytes_per_s, flow_groups, uplink_flows
from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent
from pliant.network.shaping import LEAST_BURST, burst_bytes
from pliant.spec import Topology
from pliant.spec.units import format_rate

__all__ = ["LinkReport", "link_faults", "measure_links", "require_links"]

_TOLERANCE = 0.25
_SCHEDULER_S = 0.003  # what a busy machine may add to a round trip
_SKIP_S, _SKIP_TRIPS = 0.2, 12  # slow start
_WINDOW_S, _WINDOW_TRIPS = 0.5, 10
_WINDOW_BURSTS = 3  # a slow link needs longer to say anything: its bucket may fill once more after a loss
_TCP_WINDOW_BYTES = 2.7e6
_NEAR_WINDOW = 0.3


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """Rates that one host measured towards another, or the hosts of a rack together towards those of the next rack."""

    source: str
    target: str
    wanted_bytes_per_s: float
    """0 where nothing limits the link."""
    found_bytes_per_s: float
    wanted_round_trip_s: float
    found_round_trip_s: float
    jitter_s: float = 0.0
    """Longest further delay of both ways together."""
    connections: int = 1
    """TCP connections over which the rate was measured."""


def measure_links(
    topology: Topology, hosts: Sequence[Namespace], addresses: Sequence[str], burst: int = LEAST_BURST
) -> list[LinkReport]:
    """Measure links: round trips while all are idle, then rates while all of a group send (`flow_groups`).

    With racks, then also what some hosts of each send together to the next rack.
    """
    names = [host.name for host in topology.hosts]
    found: list[LinkReport] = []
    for flows in flow_groups(topology):
        found += _measure_flows(names, flows, hosts, addresses, burst)
    across = uplink_flows(topology)
    if not across:
        return found
    shares = [r / len(across[0]) for rack in topology.racks for r in (rack.send_bytes_per_s, rack.receive_bytes_per_s)]
    measured = _measure_flows(names, [flow for mine in across for flow in mine], hosts, addresses, burst, shares)
    for g, rack in enumerate(topology.racks):
        following = topology.racks[(g + 1) % len(across)]
        mine = measured[g * len(across[g]) : (g + 1) * len(across[g])]
        own = [flow.wanted_bytes_per_s for flow in mine]
        found.append(
            LinkReport(
                source=rack.name,
                target=following.name,
                wanted_bytes_per_s=expected_bytes_per_s(
                    rack.send_bytes_per_s, following.receive_bytes_per_s, sum(own) if all(own) else 0.0
                ),
                found_bytes_per_s=sum(flow.found_bytes_per_s for flow in mine),
                wanted_round_trip_s=mine[0].wanted_round_trip_s,
                found_round_trip_s=mine[0].found_round_trip_s,
                jitter_s=mine[0].jitter_s,
                connections=sum(flow.connections for flow in mine),
            )
        )
    return found


def _measure_flows(
    names: Sequence[str],
    flows: Sequence[Flow],
    hosts: Sequence[Namespace],
    addresses: Sequence[str],
    burst: int,
    shares: Sequence[float] = (),
) -> list[LinkReport]:
    """Measure flows, all at once, and report in their order.

    Args:
        names: Names of all hosts.
        flows: Between whom.
        hosts: All.
        addresses: Theirs.
        burst: The least depth of their buckets.
        shares: Rates that flows may have to do with besides their own, in bytes/s; 0 means not limited.

    """
    limits = [rate for rate in (*(flow.bytes_per_s for flow in flows), *shares) if rate]
    trip_s = max(flow.round_trip_s + flow.jitter_s for flow in flows)
    settings: dict[str, Any] = {
        "skip_s": max(_SKIP_S, _SKIP_TRIPS * trip_s),
        "window_s": max(
            [_WINDOW_S, _WINDOW_TRIPS * trip_s, *(_WINDOW_BURSTS * burst_bytes(r, burst) / r for r in limits)]
        ),
    }
    ends = sorted({k for flow in flows for k in (flow.source, flow.target)})
    with ExitStack() as stack:
        probes: dict[int, subprocess.Popen[str]] = {}
        for k in ends:
            out = [[addresses[f.target], f.connections] for f in flows if f.source == k]
            into = {
                addresses[f.source]: [f.connections, 2 * burst_bytes(f.bytes_per_s, burst) if f.bytes_per_s else 0]
                for f in flows
                if f.target == k
            }
            probes[k] = _start(hosts[k], {**settings, "own": addresses[k], "targets": out, "sources": into})
            stack.callback(_stop, probes[k])
        _collect(probes)  # all listen
        trips_s, received = _collect(probes), _collect(probes)  # none leaves before all have figures
    return [
        LinkReport(
            source=names[flow.source],
            target=names[flow.target],
            wanted_bytes_per_s=flow.bytes_per_s,
            found_bytes_per_s=received[flow.target][addresses[flow.source]],
            wanted_round_trip_s=flow.round_trip_s,
            found_round_trip_s=trips_s[flow.source][addresses[flow.target]],
            jitter_s=flow.jitter_s,
            connections=flow.connections,
        )
        for flow in flows
    ]


def _start(host: Namespace, settings: dict[str, Any]) -> "subprocess.Popen[str]":
    # The file, not the module: without our package, and without site-packages, it starts in some 15 ms.
    return subprocess.Popen(
        [*host.prefix(), sys.executable, "-I", "-S", str(Path(link_probe.__file__)), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(os.getpid()),
    )


def _stop(probe: "subprocess.Popen[str]") -> None:
    probe.kill()  # it has said all, or something went wrong
    probe.communicate()


def _collect(probes: dict[int, "subprocess.Popen[str]"]) -> dict[int, dict[str, float]]:
    """Collect one line of figures by address from each probe, then let all continue together."""
    figures: dict[int, dict[str, float]] = {}
    for k, probe in probes.items():
        line = probe.stdout.readline() if probe.stdout is not None else ""
        if not line:
            error = (probe.stderr.read() if probe.stderr is not None else "").strip().rpartition("\n")[2]
            raise CannotEmulateError(f"a link of the emulated hosts could not be measured: {error or 'no answer'}.")
        figures[k] = json.loads(line)
    for probe in probes.values():
        if probe.stdin is not None:
            probe.stdin.write("go\n")
            probe.stdin.flush()
    return figures


def _is_slow_or_fast(r: LinkReport) -> bool:
    return bool(r.wanted_bytes_per_s) and abs(r.found_bytes_per_s / r.wanted_bytes_per_s - 1) > _TOLERANCE


def _is_late_or_early(r: LinkReport) -> bool:
    allowed_s = _TOLERANCE * r.wanted_round_trip_s
    late_s = r.found_round_trip_s - r.wanted_round_trip_s
    return bool(r.wanted_round_trip_s) and not -allowed_s <= late_s <= allowed_s + r.jitter_s + _SCHEDULER_S


def link_faults(reports: Sequence[LinkReport]) -> list[str]:
    """Return a sentence for each link that is not what was asked for."""
    found: list[str] = []
    for r in reports:
        link = f"{r.source} -> {r.target}"
        if _is_slow_or_fast(r):
            carried, wanted = format_rate(r.found_bytes_per_s), format_rate(r.wanted_bytes_per_s)
            found.append(f"{link} carries {carried} instead of {wanted}")
        if _is_late_or_early(r):
            found.append(
                f"{link} answers in {r.found_round_trip_s * 1e3:.1f} ms instead of {r.wanted_round_trip_s * 1e3:.1f}"
            )
    return found


def require_links(reports: Sequence[LinkReport]) -> None:
    """Raise a RuntimeError that names each link that is more than a quarter off, and what it may come from."""
    if wrong := link_faults(reports):
        raise RuntimeError(
            f"the emulated links are not what was asked for: {'; '.join(wrong)}. {_cause(reports)} Or leave the check "
            "out (pliant emulate --no-check)."
        )


def _cause(reports: Sequence[LinkReport]) -> str:
    """Return what explains the faults, and the cure."""
    slow = [r for r in reports if _is_slow_or_fast(r) and r.found_bytes_per_s < r.wanted_bytes_per_s]
    windows = [r.found_bytes_per_s * r.found_round_trip_s / r.connections for r in slow]
    if windows and all(abs(window / _TCP_WINDOW_BYTES - 1) < _NEAR_WINDOW for window in windows):
        return (
            f"Each of the {slow[0].connections} connections had TCP's window, about {_TCP_WINDOW_BYTES / 1e6:.1f} MB, "
            "on its way: raise net.ipv4.tcp_wmem and tcp_rmem, or lower the rate or the delay."
        )
    asked, carried = sum(r.wanted_bytes_per_s for r in reports), carried_bytes_per_s()
    if any(_is_late_or_early(r) for r in reports):
        return "Round trips are off as well: the machine may be busy; wait, or lower the rates."
    if asked > carried:
        return (
            f"The links ask for {format_rate(asked)} together, but {os.cpu_count()} cores carry some "
            f"{format_rate(carried)} beside computing: lower the rates (--scale)."
        )
    return "Round trips are right, so it is neither the machine nor TCP's window: lower the rates, or report it."
