"""Messages between two emulated hosts, one after another and after silence, beside what the model predicts.

``python benchmarks/network/slow_start.py --jsonl F.jsonl --md F.md``            what has no line yet, and the table
``python benchmarks/network/slow_start.py --jsonl F.jsonl --md F.md --table``    the table alone
``python benchmarks/network/slow_start.py --jsonl F.jsonl --on 50mbit,125ms --bytes 131072``    one link, one size

A cell is a rate, a one-way delay, a number of connections and a size. Its time is that from the send to the last byte:
the receiver answers, and half a round trip is taken off. A line has the cells of one rate and delay, of the sizes that
no line before it has. A first message of each size opens the windows and does not count. Predictions are those of
`Links.load` for one message over as many connections as it is cut for, with the window that the machine's `tcp_wmem`
sets. Needs root, for network namespaces.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from sharded.journal import json_lines, place, show
from tasc.accuracy_book import Book

from pliant.cli.emulate import topology_from_flags
from pliant.netmodel import Links, PointToPoint
from pliant.network import emulate_cluster
from pliant.network.tcp_settings import IN_FLIGHT
from pliant.spec import Topology
from pliant.spec.slices import SLICE_BYTES
from pliant.spec.units import format_rate, format_time, parse_rate, parse_time

RATES, DELAYS = ("10mbit", "50mbit", "200mbit"), ("0.2ms", "20ms", "60ms", "125ms")
ASKED = {"connections": [1, 8], "bytes": [16 << 10, 128 << 10, 1 << 20, 8 << 20], "warm": 3, "paused": 2}
PAUSE_S, FAR_S = 3.0, 0.02
BURST = 16_000
KINDS = ("warm", "paused")


class Measured(Book):
    """Lines of links, of which one may have several: each of other sizes."""

    @classmethod
    def key_of(cls, record: dict[str, Any]) -> tuple[Any, ...]:
        return record["rate"], record["delay"], *_sizes(record)

    def of(self, rate: str, delay: str) -> list[dict[str, Any]]:
        """Return the lines of a link."""
        return [record for key, record in self.records.items() if key[:2] == (rate, delay)]

    def left(self, rate: str, delay: str, sizes: Sequence[int]) -> list[int]:
        """Return the sizes that no line of a link has."""
        there = {size for record in self.of(rate, delay) for size in _sizes(record)}
        return [size for size in sizes if size not in there]


def _sizes(record: dict[str, Any]) -> list[int]:
    return sorted({cell["bytes"] for cell in record["cells"]})


def hosts(rate: str, delay: str) -> Topology:
    """Return two equal hosts."""
    return topology_from_flags(2, rate, delay, [], 1, 0.0)


def measure(rate: str, delay: str, sizes: list[int]) -> list[dict[str, Any]]:
    """Return the cells of one link."""
    with emulate_cluster(hosts(rate, delay), check=False, burst=BURST) as cluster:
        script = str(Path(__file__).with_name("slow_start_rank.py"))
        asked = json.dumps({**ASKED, "pause_s": PAUSE_S, "bytes": sizes})
        return json_lines(cluster, [sys.executable, script, asked], timeout_s=900)


def rest_s(cell: dict[str, Any]) -> float:
    """Return how long a connection is silent between messages that follow one another: the answer's way and back."""
    return 2 * cell["delay_s"]


def predicted_s(record: dict[str, Any], cell: dict[str, Any], pause_s: float) -> float:
    """Return what a message of a cell is predicted to take, up to its last byte."""
    num_bytes = cell["bytes"]
    cuts = -(-num_bytes // SLICE_BYTES)
    topology = hosts(record["rate"], record["delay"])
    more = {"connections": min(cell["connections"], cuts), "window_bytes": IN_FLIGHT * record["buffer_bytes"]}
    message = PointToPoint(
        source=np.array([0]), target=np.array([1]), share=np.ones(1), num_bytes=np.array([float(num_bytes)])
    )
    shaped = Topology(hosts=topology.hosts, **more)
    return float(Links(shaped).load(message, pause_s=pause_s).total_s[0])


def table(lines: Measured) -> str:
    """Return the page."""
    records = [record for rate in RATES for delay in DELAYS for record in lines.of(rate, delay)]
    machines = sorted({f"{r['cpu']}, {r['software']}, commit {r['commit']}" for r in records})
    rows = [
        "# Slow start: messages one after another, and after silence",
        "",
        f"`{' '.join(sys.argv)}`",
        "",
        "; ".join(machines) + ".",
        "",
        "Measured / predicted seconds; medians. In brackets what was predicted before, without windows.",
        "",
        "| rate, one way | connections | KiB | one after another | after 3 s |",
        "|---|---|---|---|---|",
    ]
    parts = ("", ", from 20 ms on")
    errors: dict[str, list[float]] = {
        f"{kind} {model}{part}": [] for part in parts for kind in KINDS for model in ("now", "before")
    }
    for record in records:
        rate, delay = format_rate(parse_rate(record["rate"])), format_time(parse_time(record["delay"]))
        for cell in record["cells"]:
            shown: list[str] = []
            for kind in KINDS:
                took_s = statistics.median(cell[f"{kind}_s"])
                now_s = predicted_s(record, cell, PAUSE_S if kind == "paused" else rest_s(cell))
                before_s = predicted_s({**record, "buffer_bytes": 0}, cell, 0.0)
                for part in parts[: 1 + (parse_time(record["delay"]) >= FAR_S)]:
                    errors[f"{kind} now{part}"].append(now_s / took_s - 1)
                    errors[f"{kind} before{part}"].append(before_s / took_s - 1)
                shown.append(f"{took_s:.3f} / {now_s:.3f} ({before_s:.3f})")
            rows.append(f"| {rate}, {delay} | {cell['connections']} | {cell['bytes'] >> 10} | {' | '.join(shown)} |")
    rows += [
        "",
        "| predictions | cells | median error | 90th percentile | mean of signed errors |",
        "|---|---|---|---|---|",
    ]
    for name, found in errors.items():
        if found:
            size = np.abs(found)
            bias = np.mean(found)
            rows.append(
                f"| {name} | {len(size)} | {np.median(size):.1%} | {np.quantile(size, 0.9):.1%} | {bias:+.1%} |"
            )
    return "\n".join(rows) + "\n"


def main() -> None:
    """Measure what is left, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True, help="lines, each of a link and some sizes")
    parser.add_argument("--md", type=Path, help="the table")
    parser.add_argument("--on", default="", help="rate and delay of the one link to measure: 50mbit,125ms")
    parser.add_argument("--bytes", type=int, nargs="+", default=ASKED["bytes"], help="sizes of messages")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    lines = Measured(arguments.jsonl)
    buffer_bytes = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text(encoding="ascii").split()[-1])
    for rate in RATES:
        for delay in reversed(DELAYS):
            left = [] if arguments.table else lines.left(rate, delay, arguments.bytes)
            if left and arguments.on in ("", f"{rate},{delay}"):
                cells = measure(rate, delay, left)
                lines.add({"rate": rate, "delay": delay, "buffer_bytes": buffer_bytes, "cells": cells, **place()})
                print(f"{rate}, {delay}: measured", flush=True)
    show(table(lines), arguments.md)


if __name__ == "__main__":
    main()
