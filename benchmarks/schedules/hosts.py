"""Sums of the blocks that ranks have chosen: by agreement, by schedule, and beside them a dense all-reduce.

    python benchmarks/schedules/hosts.py --on 4,8,racks --rounds 5 --minutes 4 --json F.json --md F.md

One set of ranks per topology, in which all arms take turns, on emulated hosts at 100 Mbit/s: 4 hosts; 8 hosts; 8 hosts
in two racks of 4, with 25 Mbit/s between them. --minutes is for each topology, besides up to a minute for each density
in which schedules are made and each arm is tried once. The files are written after each topology, and what the JSON
holds of topologies that are not measured now stays in it.

A vector has 4 MiB: 1024 blocks of 1024 float32, each 8 runs of 128. Every rank chooses as many of them, by chance and
by itself: that is the density. The agreed mask has as many blocks, by the sum of all ranks' scores.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from table import markdown
from worker import Job, written

from pliant.cli.emulate import topology_from_flags
from pliant.cli.racks import split_into_racks
from pliant.network import emulate_cluster
from pliant.network.link_check import link_faults
from pliant.spec import Topology, save
from pliant.spec.files import write_atomically
from pliant_bench.harness.setup import MARK

_HERE = Path(__file__).resolve().parent
TOPOLOGIES = {
    "4": "4 hosts",
    "8": "8 hosts",
    "racks": "two racks of 4 hosts, uplinks 4 times slower",
}


def main() -> None:
    """Measure what was asked for, and write after each topology."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    result: dict[str, Any] = {"runs": []}
    if arguments.json.exists():
        result = json.loads(arguments.json.read_text(encoding="utf-8"))
    for name in arguments.on:
        run = _run(name, arguments)
        result["runs"] = [r for r in result["runs"] if r["topology"] != run["topology"]] + [run]
        write_atomically(arguments.json, json.dumps(result, indent=1) + "\n")
        write_atomically(arguments.md, markdown(result))
    print(markdown(result))


def _run(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    num_hosts, racks, uplink = (4, 0, "") if name == "4" else (8, 0, "") if name == "8" else (8, 2, "25mbit")
    topology = split_into_racks(topology_from_flags(num_hosts, "100mbit", "0ms", [], 1, 0.0), racks, uplink)
    densities: list[dict[str, Any]] = []

    def on_line(rank: int, text: str) -> None:
        if rank == 0 and text.startswith(MARK):
            densities.append(json.loads(text.removeprefix(MARK)))
            print(f"{TOPOLOGIES[name]}: density {densities[-1]['records'][0]['density']:.2%} measured", flush=True)
        else:
            print(f"[{rank}] {text}", flush=True)

    start_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        emulate_cluster(topology, check=False, burst=arguments.burst) as cluster,
    ):
        links = cluster.check_links()
        print("; ".join(link_faults(links)) or "links are as asked for", flush=True)
        job = _job(arguments, topology, Path(folder))
        written(job, Path(folder) / "job.json")
        argv = [sys.executable, str(_HERE / "worker.py"), str(Path(folder) / "job.json")]
        results = cluster.run(argv, on_line=on_line, timeout_s=60 * (arguments.minutes + 5))
    if any(r.exit_code for r in results):
        sys.exit(f"{TOPOLOGIES[name]}: ranks failed: {[r.exit_code for r in results]}.")
    return {
        "topology": TOPOLOGIES[name],
        "command": " ".join(sys.argv),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "took_s": time.monotonic() - start_s,
        "links_wrong": link_faults(links),
        "densities": densities,
    }


def _job(arguments: argparse.Namespace, topology: Topology, folder: Path) -> Job:
    save(topology, folder / "topology.json")
    return Job(
        topology=str(folder / "topology.json"),
        densities=tuple(arguments.densities),
        num_blocks=(4 << 20) // (4 * arguments.block),
        block=arguments.block,
        rounds=arguments.rounds,
        limit_s=arguments.programs,
        minutes=arguments.minutes,
        seed=arguments.seed,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="4,8,racks", help=f"topologies: of {', '.join(TOPOLOGIES)}")
    parser.add_argument("--densities", default="0.0077,0.05,0.3", help="parts of the blocks that each rank chooses")
    parser.add_argument("--rounds", type=int, default=5, help="how often each arm is timed")
    parser.add_argument("--minutes", type=float, default=4.0, help="of each topology, after which no round begins")
    parser.add_argument("--programs", type=float, default=5.0, help="seconds of each integer program; 0: none")
    parser.add_argument("--block", type=int, default=1024, help="elements of a block")
    parser.add_argument("--burst", type=int, default=32_000, help="bytes that a link lets pass at once after a pause")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("results/schedules.json"))
    parser.add_argument("--md", type=Path, default=Path("results/schedules.md"))
    arguments = parser.parse_args()
    arguments.on = arguments.on.split(",")
    arguments.densities = [float(density) for density in arguments.densities.split(",")]
    if wrong := [name for name in arguments.on if name not in TOPOLOGIES]:
        parser.error(f"--on names {', '.join(wrong)}, but there are {', '.join(TOPOLOGIES)}.")
    return arguments


if __name__ == "__main__":
    main()
