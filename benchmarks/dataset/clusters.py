"""Emulated clusters of the measured rows, and which models are trained there."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

from pliant.spec import Host, Link, Rack, Topology
from pliant.spec.matrices import topology_of_matrices
from pliant.spec.units import parse_rate

__all__ = ["CLUSTERS", "SLOW", "even", "lossy", "pairs", "racks", "uneven"]

PAIR_FACTOR, PAIR_TRIPS_S = 30.0, (1e-3, 0.04)
"""Largest over least rate of pairs of hosts; shortest and longest round trip. Both are log-uniform between."""
SLOW_SHARE = 0.5


def even(num_hosts: int, num_ranks: int, rate: str, delay_s: float = 0.0, send: str = "") -> Topology:
    """Return hosts that are alike; with `send`, they send at another rate than they receive at."""
    sent, received = parse_rate(send or rate), parse_rate(rate)
    return uneven([(sent, received)] * num_hosts, num_ranks, delay_s)


def uneven(rates: Sequence[tuple[float, float]], num_ranks: int = 1, delay_s: float = 0.0) -> Topology:
    """Return hosts with rates of their own, (send, receive) in bytes/s."""
    hosts = tuple(
        Host(name=f"host{k}", num_ranks=num_ranks, send_bytes_per_s=a, receive_bytes_per_s=b, delay_s=delay_s)
        for k, (a, b) in enumerate(rates)
    )
    return Topology(hosts=hosts, provenance="given")


def pairs(num_hosts: int, num_ranks: int, mean_rate: str, chance: random.Random) -> Topology:
    """Return hosts whose ordered pairs all differ in rate, with the mean given, and whose pairs differ in delay."""
    apart = [[a != b for b in range(num_hosts)] for a in range(num_hosts)]
    rates = [[PAIR_FACTOR ** chance.random() * one for one in row] for row in apart]
    scale = parse_rate(mean_rate) * num_hosts * (num_hosts - 1) / sum(map(sum, rates))
    low, high = map(math.log, PAIR_TRIPS_S)
    trips = [[0.0] * num_hosts for _ in range(num_hosts)]
    for a, b in itertools.combinations(range(num_hosts), 2):
        trips[a][b] = trips[b][a] = math.exp(chance.uniform(low, high))
    found = topology_of_matrices([[rate * scale for rate in row] for row in rates], round_trip_s=trips)
    return replace(found, hosts=tuple(replace(host, num_ranks=num_ranks) for host in found.hosts))


def racks(num_racks: int, num_hosts: int, rate: str, uplink: str) -> Topology:
    """Return racks of hosts that are alike, behind uplinks."""
    hosts = even(num_racks * num_hosts, 1, rate).hosts
    names = [host.name for host in hosts]
    up = parse_rate(uplink)
    behind = (
        Rack(
            name=f"rack{k}",
            hosts=tuple(names[k * num_hosts : (k + 1) * num_hosts]),
            send_bytes_per_s=up,
            receive_bytes_per_s=up,
        )
        for k in range(num_racks)
    )
    return Topology(hosts=hosts, racks=tuple(behind), provenance="given")


def lossy(topology: Topology, loss: float) -> Topology:
    """Return the hosts with losses both ways between the first and the last."""
    first, last = topology.hosts[0], topology.hosts[-1]
    links = tuple(
        Link(source=a.name, target=b.name, bytes_per_s=0.0, latency_s=b.delay_s, loss=loss)
        for a, b in ((first, last), (last, first))
    )
    return replace(topology, links=links)


_MBIT = 1e6 / 8
CLUSTERS: dict[str, tuple[Topology, tuple[str, ...]]] = {
    "2x1-50mbit": (even(2, 1, "50mbit"), ("cnn", "chars", "lstm")),
    "3x1-uneven-hosts": (
        uneven([(r * _MBIT, r * _MBIT) for r in (200, 100, 50)], delay_s=1e-3),
        ("cnn", "gpt", "resnet"),
    ),
    "4x1-100mbit-5ms": (even(4, 1, "100mbit", 5e-3), ("chars", "lstm", "resnet")),
    "4x1-500mbit": (even(4, 1, "500mbit"), ("vgg", "clicks", "wide")),
    "4x1-uneven-pairs": (pairs(4, 1, "100mbit", random.Random(1)), ("cnn", "resnet", "gpt")),
    "4x1-200mbit-slow": (even(4, 1, "200mbit"), ("lstm", "gpt", "chars")),
    "2x2-100mbit-5ms": (even(2, 2, "100mbit", 5e-3), ("cnn", "gpt", "resnet")),
    "2x2-500mbit-slow": (even(2, 2, "500mbit"), ("vgg", "clicks", "wide")),
    "2x3-200mbit-1ms": (even(2, 3, "200mbit", 1e-3), ("wide", "lstm", "resnet")),
    "3x2-uneven-pairs": (pairs(3, 2, "200mbit", random.Random(2)), ("clicks", "wide", "gpt")),
    "6x1-uneven-pairs": (pairs(6, 1, "50mbit", random.Random(3)), ("chars", "wide", "resnet")),
    "8x1-150mbit-1ms": (even(8, 1, "150mbit", 1e-3), ("cnn", "chars", "lstm")),
    "2x4-400mbit": (even(2, 4, "400mbit"), ("vgg", "clicks", "wide")),
    "5x1-home-uplinks": (even(5, 1, "100mbit", 5e-3, send="20mbit"), ("cnn", "chars", "gpt")),
    "4x1-two-racks": (racks(2, 2, "400mbit", "200mbit"), ("vgg", "lstm", "clicks")),
    "4x1-400mbit-lossy": (lossy(even(4, 1, "400mbit", 1e-3), 0.001), ("vgg", "clicks", "wide")),
}
"""Name -> hosts, and the models that are trained there, each with one optimizer. At most about 2 Gbit/s in all, which
two cores carry while they compute."""

SLOW = {name: SLOW_SHARE for name in CLUSTERS if name.endswith("slow")}
"""Clusters whose last host computes at a part of the others' speed."""
