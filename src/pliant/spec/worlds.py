"""Named worlds: topologies of networks that there are, for emulation and predictions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from pliant.spec.matrices import topology_of_matrices
from pliant.spec.topology import Host, Link, Rack, Topology

__all__ = ["WORLDS", "world"]

_MBIT, _GBIT = 1e6 / 8, 1e9 / 8


def _hosts(names: list[str], bytes_per_s: float) -> tuple[Host, ...]:
    return tuple(Host(name=name, send_bytes_per_s=bytes_per_s, receive_bytes_per_s=bytes_per_s) for name in names)


def _racks(groups: Mapping[str, list[str]], bytes_per_s: float) -> tuple[Rack, ...]:
    return tuple(
        Rack(name=name, hosts=tuple(hosts), send_bytes_per_s=bytes_per_s, receive_bytes_per_s=bytes_per_s)
        for name, hosts in groups.items()
    )


def _lan() -> Topology:
    """Four hosts on one switch at 1 Gbit/s."""
    return Topology(hosts=_hosts([f"host{k}" for k in range(4)], _GBIT), provenance="world lan")


def _two_racks() -> Topology:
    """Two racks of four hosts at 1 Gbit/s, and uplinks of 1 Gbit/s: a quarter of what the hosts can send."""
    groups = {f"rack{r}": [f"rack{r}-host{k}" for k in range(4)] for r in range(2)}
    hosts = _hosts([name for names in groups.values() for name in names], _GBIT)
    return Topology(hosts=hosts, racks=_racks(groups, _GBIT), provenance="world two-racks")


def _islands() -> Topology:
    """Two boxes of four GPUs, a host each: NVLink inside, one network interface of 200 Gbit/s for each GPU outside.

    Figures of NVIDIA's DGX A100: 300 GB/s of NVLink each way, ConnectX-6 interfaces.
    """
    groups = {f"dgx{b}": [f"dgx{b}-gpu{k}" for k in range(4)] for b in range(2)}
    names = [name for gpus in groups.values() for name in gpus]
    return Topology(
        hosts=_hosts(names, 2400 * _GBIT),
        racks=_racks(groups, 4 * 200 * _GBIT),
        links=tuple(
            Link(source=a, target=b, bytes_per_s=200 * _GBIT, latency_s=0.0)
            for a in names
            for b in names
            if a.partition("-")[0] != b.partition("-")[0]
        ),
        provenance="world islands",
    )


_CONTINENTS = {"us": "103/6.2 157/6 176/6", "eu": "253/6 272/6", "asia": "131/6", "aus": ""}
"""Round trip, ms, and rate, Gbit/s, to each following continent."""


def _four_continents() -> Topology:
    """Virtual machines of one cloud on four continents: 6 Gbit/s between any two, as many connections have it.

    Measured between Google's regions by Isenko et al. (How can we train deep learning models across clouds and
    continents?, PVLDB 17(6), 2023, arXiv:2306.03163): 6.2 Gbit/s from Europe to the US over 80 connections, .21 over
    one; the others' rates over many were not measured.
    """
    hosts = _hosts(list(_CONTINENTS), 6.9 * _GBIT)
    return Topology(hosts=hosts, links=_both_ways(_CONTINENTS), provenance="world four-continents")


_REGIONS = {
    "oregon": "67/0.79 49/1.10 96/0.523 124/0.46 163/0.341 139/0.36 136/0.42 143/0.404 124/0.482",
    "virginia": "11/1.12 143/0.524 172/0.50 230/0.364 197/0.383 76/1.16 90/1.02 67/1.05",
    "ohio": "130/0.694 159/0.529 197/0.452 185/0.484 86/1.05 99/0.799 77/1.14",
    "tokyo": "34/1.10 73/1.01 100/0.761 210/0.366 223/0.36 199/0.465",
    "seoul": "74/1.14 148/0.58 238/0.342 235/0.358 228/0.335",
    "singapore": "92/0.816 169/0.50 155/0.535 179/0.492",
    "sydney": "262/0.326 265/0.328 254/0.344",
    "london": "14/1.14 12/1.09",
    "frankfurt": "24/1.08",
    "ireland": "",
}
"""Round trip, ms, and rate, Gbit/s, to each following region."""


def _ten_regions() -> Topology:
    """Ten cloud regions, a host each.

    Yuan et al. (Decentralized training of foundation models in heterogeneous environments, NeurIPS 2022,
    arXiv:2206.01288), measured on AWS; github.com/DS3Lab/DT-FM, scheduler/generate_sim_com_matrices.py, whose delays
    are round trips.
    """
    hosts = tuple(Host(name=name) for name in _REGIONS)
    return Topology(hosts=hosts, links=_both_ways(_REGIONS), provenance="world ten-regions")


def _both_ways(rows: Mapping[str, str]) -> tuple[Link, ...]:
    """Return links of a triangle of round trips in ms and rates in Gbit/s; half a round trip is the delay each way."""
    names = list(rows)
    links: list[Link] = []
    for a, source in enumerate(names):
        for target, cell in zip(names[a + 1 :], rows[source].split(), strict=True):
            round_trip_ms, gbit = map(float, cell.split("/"))
            figures = {"bytes_per_s": gbit * _GBIT, "latency_s": round_trip_ms / 2e3}
            links += [Link(source=source, target=target, **figures), Link(source=target, target=source, **figures)]
    return tuple(links)


_HOMES = {
    "fiber": (500.0, 1000.0, 3.0, 0.0, 0.0),
    "cable": (40.0, 500.0, 8.0, 4.0, 0.0),
    "vdsl": (20.0, 100.0, 10.0, 1.0, 0.0),
    "adsl": (2.0, 16.0, 15.0, 2.0, 0.0),
    "lte": (15.0, 50.0, 25.0, 15.0, 0.002),
    "satellite": (12.0, 120.0, 20.0, 10.0, 0.005),
}
"""Up and down, Mbit/s; one-way delay and jitter from the home to the middle of the network, ms; share of losses."""


def _home_uplinks() -> Topology:
    """Six homes, of which each sends more slowly than it receives. Figures chosen by us, as subscriptions have them."""
    names = list(_HOMES)
    up, down, delay_ms, jitter_ms, loss = (list(column) for column in zip(*_HOMES.values(), strict=True))
    num = range(len(names))

    def pairs(figure: Callable[[int, int], float]) -> list[list[float]]:
        return [[figure(a, b) if a != b else 0.0 for b in num] for a in num]

    found = topology_of_matrices(
        pairs(lambda a, b: 0.0),
        pairs(lambda a, b: (delay_ms[a] + delay_ms[b]) / 1e3),
        jitter_s=pairs(lambda a, b: (jitter_ms[a] + jitter_ms[b]) / 1e3),
        loss=pairs(lambda a, b: 1 - (1 - loss[a]) * (1 - loss[b])),
        names=names,
    )
    hosts = tuple(Host(name=names[k], send_bytes_per_s=up[k] * _MBIT, receive_bytes_per_s=down[k] * _MBIT) for k in num)
    return Topology(hosts=hosts, links=found.links, provenance="world home-uplinks")


def _gpu_hosts(names: list[str], machine: str, num_ranks: int, bytes_per_s: float) -> tuple[Host, ...]:
    return tuple(replace(host, machine=machine, num_ranks=num_ranks) for host in _hosts(names, bytes_per_s))


def _autosync_a() -> Topology:
    """Eleven hosts with one TITAN X each, on one switch of 40 Gbit/s: cluster A of AutoSync (Zhang et al., 2020)."""
    hosts = _gpu_hosts([f"host{k}" for k in range(11)], "titan-x", 1, 40 * _GBIT)
    return Topology(hosts=hosts, provenance="world autosync-a")


def _autosync_b() -> Topology:
    """Four g4dn.12xlarge with four T4 each, at 50 Gbit/s: cluster B of AutoSync."""
    hosts = _gpu_hosts([f"host{k}" for k in range(4)], "t4", 4, 50 * _GBIT)
    return Topology(hosts=hosts, provenance="world autosync-b")


WORLDS: Mapping[str, Callable[[], Topology]] = MappingProxyType(
    {
        "lan": _lan,
        "two-racks": _two_racks,
        "islands": _islands,
        "four-continents": _four_continents,
        "ten-regions": _ten_regions,
        "home-uplinks": _home_uplinks,
        "autosync-a": _autosync_a,
        "autosync-b": _autosync_b,
    }
)
"""Name -> what makes the topology, with the rates that the real network has."""


def world(name: str, scale: float = 1.0) -> Topology:
    """Return a named world, its rates times `scale`: one machine can emulate some 2 Gbit/s in all.

    Args:
        name: One of `WORLDS`.
        scale: Factor of all rates; delays, jitters and losses stay.

    Raises:
        ValueError: There is no such world, or the factor is not a positive number.

    >>> world("four-continents", scale=0.1).links[0].bytes_per_s
    75000000.0

    """
    if name not in WORLDS:
        raise ValueError(f"there is no world {name!r}; there are {', '.join(WORLDS)}.")
    found = WORLDS[name]()
    return found if scale == 1 else found.scaled(scale)
