"""Dense sums on meshes of hosts whose ordered pairs all differ, over real TCP: Gloo's ring, the family, and trees.

``python benchmarks/schedules/meshes.py --jsonl F.jsonl --md F.md``            what has no line yet, and the table
``python benchmarks/schedules/meshes.py --jsonl F.jsonl --md F.md --table``    the table alone

Meshes are drawn from their number before any is measured: `mesh K` has 4 + K mod 5 hosts, rates of ordered pairs
log-uniform over a factor of 100, scaled so that all pairs together have 2 Gbit/s, and one-way delays of 1 to 20 ms. Two
named worlds come after them: four continents, and ten regions, at parts of their rates. On each the ranks probe the
network, choose from what was probed, and let three arms take turns: Gloo's ring, the fastest of the family in the order
of ranks (all that Pliant knew before), and what it chooses now. Vectors: 2 MiB, and a tenth of 8 MiB, which is what
agreed blocks of 10 % come to. One line a mesh. A figure is the median of the rounds; what takes more than 3 s has one.
Needs root, for network namespaces.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import Lines, json_lines, place, show

from pliant.network import emulate_cluster
from pliant.spec import Topology, save
from pliant.spec.matrices import topology_of_matrices
from pliant.spec.worlds import world

KEY = ("mesh",)
BURST = 16_000
"""Bytes that a link lets pass at once after a pause: little beside a message's part."""
NUM_MESHES, BYTES_PER_S, DELAYS_S = 20, 2e9 / 8, (1e-3, 20e-3)
WORLDS = {"four-continents": 0.1, "ten-regions": 0.04}
"""World -> scale of its rates: what two cores carry."""
KINDS = ("dense", "agreed")
OVER_RING, OVER_FAMILY, LEAST = 2.0, 1.5, 0.98
"""Speedups that are wanted: at the median, and at least."""


def mesh(number: int) -> Topology:
    """Return the mesh of a number."""
    rng, num = np.random.default_rng(number), 4 + number % 5
    apart = 1 - np.eye(num)
    rates = 100 ** rng.random((num, num)) * apart
    rates *= BYTES_PER_S / rates.sum()
    delays_s = (DELAYS_S[0] + (DELAYS_S[1] - DELAYS_S[0]) * rng.random((num, num))) * apart
    return topology_of_matrices(rates.tolist(), delays_s.tolist())


def topologies() -> dict[str, Topology]:
    """Return all that is measured, by name."""
    meshes = {f"mesh {k}": mesh(k) for k in range(1, NUM_MESHES + 1)}
    return meshes | {f"{name} x{scale:g}": world(name, scale) for name, scale in WORLDS.items()}


def measure(topology: Topology, rounds: int) -> dict[str, Any]:
    """Return the records of one mesh."""
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(topology, check=False, burst=BURST) as cluster:
        asked = Path(folder) / "asked.json"
        save(topology, asked)
        argv = [sys.executable, str(Path(__file__).with_name("meshes_rank.py")), str(asked), str(rounds)]
        return json_lines(cluster, argv, timeout_s=540)[0]


def table(lines: Lines) -> str:
    """Return the page."""
    records = [lines.records[(name,)] for name in topologies() if (name,) in lines.records]
    machines = sorted({f"{r['cpu']}, {r['software']}, commit {r['commit']}" for r in records})
    rows = ["# Dense sums on uneven meshes", "", f"`{' '.join(sys.argv)}`", "", "; ".join(machines) + ".", ""]
    for kind in KINDS:
        rows += [
            f"## {kind}",
            "",
            "| mesh | hosts | Gloo's ring | family | chosen | its time | over the ring | over the family | predicted "
            "over measured: ring, family, chosen |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        over: dict[str, list[float]] = {"ring": [], "family": []}
        errors: list[float] = []
        for record in records:
            mine = {arm["arm"]: arm for arm in record["arms"] if arm["kind"] == kind}
            took = {name: statistics.median(arm["seconds"]) for name, arm in mine.items()}
            ratios = [arm["predicted_s"] / took[name] for name, arm in mine.items()]
            if record["mesh"].startswith("mesh"):
                for name in over:
                    over[name].append(took[name] / took["chosen"])
                errors += [abs(ratio - 1) for ratio in ratios]
            rows.append(
                f"| {record['mesh']} | {record['hosts']} | {took['ring']:.3f} s | {took['family']:.3f} s | "
                f"{mine['chosen']['name']} | {took['chosen']:.3f} s | {took['ring'] / took['chosen']:.2f} | "
                f"{took['family'] / took['chosen']:.2f} | {', '.join(f'{r:.2f}' for r in ratios)} |"
            )
        if errors:
            ring, family = over["ring"], over["family"]
            rows += [
                "",
                f"Of the {len(ring)} meshes: over Gloo's ring {statistics.median(ring):.2f} at the median (least "
                f"{min(ring):.2f}; wanted {OVER_RING:g} and {LEAST:g}), over the family "
                f"{statistics.median(family):.2f} (least {min(family):.2f}; wanted {OVER_FAMILY:g} and {LEAST:g}). "
                f"Predictions are off by "
                f"{100 * statistics.median(errors):.0f} % at the median and {100 * np.quantile(errors, 0.9):.0f} % at "
                "the 90th percentile (wanted 15 and 30).",
                "",
            ]
    return "\n".join(rows)


def carry_out(
    about: str,
    networks: Mapping[str, Topology],
    measure: Callable[[Topology, int], dict[str, Any]],
    table: Callable[[Lines], str],
    rounds: int,
) -> None:
    """Measure the networks that have no line, in their order, and write the table.

    Args:
        about: Text of the command's help.
        networks: By name.
        measure: Returns the record of one network, of so many turns.
        table: Returns the page.
        rounds: Turns by default.

    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True, help="lines, one a network")
    parser.add_argument("--md", type=Path, help="the table")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each arm")
    parser.add_argument("--on", default="", help="networks, separated by commas; all if not given")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    lines = Lines(arguments.jsonl, KEY)
    on = [name for name in arguments.on.split(",") if name]
    for name, topology in networks.items():
        if not arguments.table and (not on or name in on) and not lines.has(name):
            found = measure(topology, arguments.rounds)
            lines.add({"mesh": name, "hosts": len(topology.hosts), **found, **place()})
            print(f"{name}: measured", flush=True)
    show(table(lines), arguments.md)


if __name__ == "__main__":
    carry_out(__doc__, topologies(), measure, table, rounds=3)
