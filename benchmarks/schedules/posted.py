"""Sums by a schedule whose receives are posted a round ahead, beside the same with each round's own, over real TCP.

``python benchmarks/schedules/posted.py --jsonl F.jsonl --md F.md [--on "four-continents x0.1,mesh 3"] [--table]``

The networks of `meshes.py`: two named worlds, and 20 meshes. On each the ranks probe, choose a schedule, and carry it
out both ways in turn; sums are equal to the bit. One line a network. Needs root, for network namespaces.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from schedules.meshes import BURST, WORLDS, carry_out, topologies
from sharded.journal import Lines, json_lines

from pliant.network import emulate_cluster
from pliant.spec import Topology, save

WAYS = ("round by round", "ahead")


def measure(topology: Topology, rounds: int) -> dict[str, Any]:
    """Return the record of one network."""
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(topology, check=False, burst=BURST) as cluster:
        asked = Path(folder) / "asked.json"
        save(topology, asked)
        argv = [sys.executable, str(Path(__file__).with_name("posted_rank.py")), str(asked), str(rounds)]
        return json_lines(cluster, argv, timeout_s=540)[0]


def table(lines: Lines) -> str:
    """Return the page."""
    rows = ["# Receives a round ahead", "", f"`{' '.join(sys.argv)}`", ""]
    rows += [
        "| network | sum | schedule, its rounds | round by round | ahead | faster | predicted over measured: round by "
        "round, ahead | the same with the first round's way back |",
        "|---|---|---|---|---|---|---|---|",
    ]
    gains = list[float]()
    for record in [lines.records[(name,)] for name in topologies() if (name,) in lines.records]:
        for each in record["sums"]:
            before_s, ahead_s = (statistics.median(each["seconds"][way]) for way in WAYS)
            plain, worded = each["predicted_s"], each["predicted_s"] + each["delays_s"][0]
            gains.append(before_s / ahead_s)
            rows.append(
                f"| {record['mesh']} | {each['kind']} | {each['name']}, {len(each['delays_s'])} | {before_s:.3f} s | "
                f"{ahead_s:.3f} s | {gains[-1]:.2f} | {plain / before_s:.2f}, {plain / ahead_s:.2f} | "
                f"{worded / before_s:.2f}, {worded / ahead_s:.2f} |"
            )
    if gains:
        rows += ["", f"Faster by {statistics.median(gains):.2f} at the median, {min(gains):.2f} at least.", ""]
    return "\n".join(rows)


if __name__ == "__main__":
    every = topologies()
    worlds_first = {name: every[name] for name in sorted(every, key=lambda name: name.split(" x")[0] not in WORLDS)}
    carry_out(__doc__, worlds_first, measure, table, rounds=5)
