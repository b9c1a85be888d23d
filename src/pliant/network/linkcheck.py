"""Are the links what was asked for? Measured between live hosts, and held against it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pliant.network import linkprobe
from pliant.network.namespaces import CannotEmulateError, Namespace, die_with_parent
from pliant.network.shaping import burst_bytes
from pliant.spec import Topology

__all__ = ["LinkReport", "expected_bytes_per_s", "judge", "measure", "refuse_wrong"]

_TOLERANCE = 0.25
_SCHEDULER_S = 0.003  # what a busy machine may add to a round trip
_MIN_WINDOW_S = 0.5
_MIN_WINDOW_BURSTS = 3  # a slow link needs longer to say anything: its bucket may fill once more after a loss


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """What one host measured towards the next."""

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


def measure(topology: Topology, hosts: Sequence[Namespace], addresses: Sequence[str]) -> list[LinkReport]:
    """Measure each host's link to the next: round trips while all are idle, then rates while all send."""
    num = len(hosts)
    if num < 2:
        return []
    pairs = [(topology.hosts[k], topology.hosts[(k + 1) % num]) for k in range(num)]
    wanted = [expected_bytes_per_s(source.send_bytes_per_s, target.receive_bytes_per_s) for source, target in pairs]
    window_s = max([_MIN_WINDOW_S, *(_MIN_WINDOW_BURSTS * burst_bytes(rate) / rate for rate in wanted if rate)])
    with ExitStack() as stack:
        probes: list[subprocess.Popen[str]] = []
        for k, host in enumerate(hosts):
            skip_bytes = 2 * burst_bytes(wanted[k - 1]) if wanted[k - 1] else 0  # what host k receives comes from k - 1
            settings = [addresses[k], addresses[(k + 1) % num], str(skip_bytes), str(window_s)]
            probes.append(_start(host, settings))
            stack.callback(_stop, probes[k])
        _turn(probes)  # all listen
        round_trips_s = _turn(probes)
        received = _turn(probes)  # none leaves before all have their figures
    return [
        LinkReport(
            source=source.name,
            target=target.name,
            wanted_bytes_per_s=wanted[k],
            found_bytes_per_s=received[(k + 1) % num],
            wanted_round_trip_s=source.delay_s + target.delay_s,
            found_round_trip_s=round_trips_s[k],
        )
        for k, (source, target) in enumerate(pairs)
    ]


def _start(host: Namespace, settings: Sequence[str]) -> "subprocess.Popen[str]":
    # The file, not the module: without our package, and without site-packages, it starts in some 15 ms.
    return subprocess.Popen(
        [*host.prefix(), sys.executable, "-I", "-S", str(Path(linkprobe.__file__)), *settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(os.getpid()),
    )


def _stop(probe: "subprocess.Popen[str]") -> None:
    probe.kill()  # it has said all, or something went wrong
    probe.communicate()


def _turn(probes: Sequence["subprocess.Popen[str]"]) -> list[float]:
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


def judge(reports: Sequence[LinkReport]) -> list[str]:
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


def refuse_wrong(reports: Sequence[LinkReport]) -> None:
    """Raise a RuntimeError that names each link that is more than a quarter off."""
    if wrong := judge(reports):
        raise RuntimeError(
            "the emulated links are not what was asked for: " + "; ".join(wrong) + ". The machine may be busy, or the "
            "sum of all rates too high for it (about 4 Gbit/s); wait, lower the rates, or leave the check out "
            "(pliant emulate --no-check)."
        )
