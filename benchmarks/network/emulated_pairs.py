"""Emulated pairs of hosts against what was asked for: rate, round trip and loss of each ordered pair.

``python benchmarks/network/emulated_pairs.py --jsonl F.jsonl --md F.md``            what has no line yet, and the table
``python benchmarks/network/emulated_pairs.py --jsonl F.jsonl --md F.md --table``    the table alone

`links`: TCP over as many connections as fill each link, counted where segments arrive; round trips before, idle. Worlds
are those that Pliant names, scaled to what two cores carry, pairs of hosts far apart, and meshes whose pairs differ by
a factor of 100 (log-uniform, `mesh HOSTS SEED`). `losses`: on a ring of hosts each sends 50,000 datagrams of one packet
to the next, at the link's rate, with 5 ms of delay and as much jitter; then one TCP connection sends for 5 s, and says
which share it had to send again, beside the share that was lost, packet by packet. One line a trial; three runs each,
of all or of those that --on names (--on "mesh 4 1,100mbit 1.0%"). Needs root.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, place, show

from pliant.network import emulate_cluster
from pliant.network.link_check import measure_links
from pliant.network.shaping import LEAST_BURST
from pliant.spec import Host, Link, Topology
from pliant.spec.matrices import topology_of_matrices
from pliant.spec.units import parse_rate
from pliant.spec.worlds import world

KEY = ("kind", "world", "run")
RUNS = 3
WORLDS = {
    "lan": 0.5,
    "two-racks": 0.25,
    "islands": 0.0001,
    "four-continents": 0.07,
    "ten-regions": 0.03,
    "home-uplinks": 1.0,
}
"""World -> scale of its rates."""
PAIRS = {"100mbit 100ms": (100e6, 0.1), "300mbit 250ms": (300e6, 0.25), "1gbit 100ms": (1e9, 0.1)}
"""Two hosts: rate in bit/s, round trip in s."""
MESHES = [(hosts, seed) for hosts in (4, 8) for seed in (1, 2, 3)]
MESH_BYTES_PER_S = 1.5e9 / 8
LOSSES = {
    f"{rate} {loss:.1%}": (rate, loss, hosts)
    for rate, hosts in (("10mbit", 8), ("100mbit", 4))
    for loss in (0.005, 0.01, 0.05)
}
PACKETS = 50_000
RATE_WITHIN, TRIP_WITHIN, TRIP_WITHIN_S, LOSS_WITHIN = 0.05, 0.05, 2e-3, 0.2


def mesh(num_hosts: int, seed: int) -> Topology:
    """Return hosts whose ordered pairs all differ: rates over a factor of 100, one-way delays up to 125 ms."""
    rng = np.random.default_rng(seed)
    apart = 1 - np.eye(num_hosts)
    rates = 100 ** rng.random((num_hosts, num_hosts)) * apart
    rates *= MESH_BYTES_PER_S / rates.sum()
    return topology_of_matrices(rates.tolist(), (0.125 * rng.random((num_hosts, num_hosts)) * apart).tolist())


def topologies() -> dict[str, Topology]:
    """Return what links are measured on."""
    found = {f"{name} x{scale:g}": world(name, scale) for name, scale in WORLDS.items()}
    for name, (bits_per_s, trip_s) in PAIRS.items():
        one = {"send_bytes_per_s": bits_per_s / 8, "receive_bytes_per_s": bits_per_s / 8, "delay_s": trip_s / 2}
        found[name] = Topology(hosts=tuple(Host(name=host, **one) for host in ("a", "b")))
    return found | {f"mesh {hosts} {seed}": mesh(hosts, seed) for hosts, seed in MESHES}


def measure_world(topology: Topology) -> dict[str, Any]:
    """Measure all links of a topology once."""
    with emulate_cluster(topology, check=False) as cluster:
        num = range(len(topology.hosts))
        namespaces, addresses = [cluster.namespace(k) for k in num], [cluster.address(k) for k in num]
        return {"links": [asdict(r) for r in measure_links(topology, namespaces, addresses, LEAST_BURST)]}


def measure_losses(rate: str, loss: float, num_hosts: int) -> dict[str, Any]:
    """Send datagrams, then a stream, around a ring of hosts that lose packets."""
    names = [f"h{k}" for k in range(num_hosts)]
    links = tuple(
        Link(source=a, target=b, bytes_per_s=parse_rate(rate), latency_s=5e-3, jitter_s=5e-3, loss=loss)
        for a, b in zip(names, [*names[1:], names[0]], strict=True)
    )
    said: list[dict[str, Any]] = []
    topology = Topology(hosts=tuple(Host(name=name) for name in names), links=links)
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(topology, check=False) as cluster:
        argv = [sys.executable, str(Path(__file__).with_name("lossy_rank.py")), folder, str(PACKETS)]
        results = cluster.run(argv, on_line=lambda _, line: said.append(json.loads(line)), timeout_s=900)
    if any(result.exit_code for result in results):
        sys.exit(f"ranks failed: {[result.exit_code for result in results]}.")
    return {"ranks": sorted(said, key=lambda one: one["rank"])}


def measure(lines: Lines, on: list[str]) -> None:
    """Measure what has no line, of all or of what is named."""
    for run in range(RUNS):
        for name, topology in topologies().items():
            if (not on or name in on) and not lines.has("links", name, run):
                lines.add({"kind": "links", "world": name, "run": run, **measure_world(topology), **place()})
                print(f"links of {name}, run {run}: measured", flush=True)
        for name, (rate, loss, num_hosts) in LOSSES.items():
            if (not on or name in on) and not lines.has("losses", name, run):
                found = measure_losses(rate, loss, num_hosts)
                lines.add({"kind": "losses", "world": name, "run": run, "loss": loss, **found, **place()})
                print(f"losses at {name}, run {run}: measured", flush=True)


def table(lines: Lines) -> str:
    """Return the page."""
    machines = sorted({f"{r['cpu']}, {r['software']}, commit {r['commit']}" for r in lines.records.values()})
    loads = [float(r["load"].split()[0]) for r in lines.records.values()]
    rows = [
        "# Emulated pairs of hosts against what was asked for",
        "",
        f"`{' '.join(sys.argv)}`",
        "",
        "; ".join(machines) + (f"; load {min(loads):.1f} to {max(loads):.1f}." if loads else "."),
        "",
        "| world | runs | links | rate over asked, median (least, most) | within 5 % | round trip less asked, ms, "
        "median (least, most) | within 2 ms or 5 % |",
        "|---|---|---|---|---|---|---|",
        *(_links_row(name, _of(lines, "links", name)) for name in topologies()),
        "",
        "| losses asked for | runs | pairs | datagrams lost over asked, median (least, most) | within 20 % | in order "
        "| sent again by TCP over asked |",
        "|---|---|---|---|---|---|---|",
        *(_losses_row(name, _of(lines, "losses", name)) for name in LOSSES),
        "",
    ]
    return "\n".join(row for row in rows if row is not None)


def _of(lines: Lines, kind: str, name: str) -> list[dict[str, Any]]:
    return [r for r in lines.of_kind(kind) if r["world"] == name]


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


def _links_row(name: str, records: list[dict[str, Any]]) -> str | None:
    links = [link for record in records for link in record["links"]]
    if not links:
        return None
    rates = [r["found_bytes_per_s"] / r["wanted_bytes_per_s"] for r in links if r["wanted_bytes_per_s"]]
    late_s = [r["found_round_trip_s"] - r["wanted_round_trip_s"] for r in links]
    right = sum(abs(rate - 1) <= RATE_WITHIN for rate in rates)
    in_time = sum(_is_in_time(r) for r in links)
    trips = _spread([1e3 * s for s in late_s], ".2f")
    return (
        f"| {name} | {len(records)} | {len(links) // len(records)} | {_spread(rates, '.3f')} | {right} of {len(rates)} "
        f"| {trips} | {in_time} of {len(links)} |"
    )


def _is_in_time(r: Mapping[str, Any]) -> bool:
    """Say whether a round trip is as asked; with jitter it may be as much longer, since five have a least one."""
    late_s = r["found_round_trip_s"] - r["wanted_round_trip_s"]
    allowed_s = max(TRIP_WITHIN_S, TRIP_WITHIN * r["wanted_round_trip_s"])
    return -allowed_s <= late_s <= allowed_s + r["jitter_s"]


def _losses_row(name: str, records: list[dict[str, Any]]) -> str | None:
    ranks = [{**rank, "loss": record["loss"]} for record in records for rank in record["ranks"]]
    if not ranks:
        return None
    lost = [(1 - r["came"] / r["sent"]) / r["loss"] for r in ranks]
    again = [r["tcp_again"] / r["loss"] for r in ranks]
    right, ordered = sum(abs(x - 1) <= LOSS_WITHIN for x in lost), sum(r["in_order"] for r in ranks)
    return (
        f"| {name} | {len(records)} | {len(ranks) // len(records)} | {_spread(lost, '.3f')} | {right} of {len(lost)} | "
        f"{ordered} of {len(ranks)} | {_spread(again, '.3f')} |"
    )


def main() -> None:
    """Measure what is left, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True, help="lines, one a trial")
    parser.add_argument("--md", type=Path, help="the table")
    parser.add_argument("--on", default="", help="what to measure, separated by commas; all if not given")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    lines = Lines(arguments.jsonl, KEY)
    if not arguments.table:
        measure(lines, [name for name in arguments.on.split(",") if name])
    show(table(lines), arguments.md)


if __name__ == "__main__":
    main()
