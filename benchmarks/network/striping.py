"""Rate of one message between two emulated hosts by the number of connections, beside torch's groups and iperf3.

    python benchmarks/network/striping.py OUT.jsonl [--links 1gbit:50ms,300mbit:125ms] [--connections 1,8]
    python benchmarks/network/striping.py OUT.jsonl --table

Each line of the file is one trial: a link, an arm, a number of connections and a size. A trial that is there is not run
again. A message has 96 MB, or --bytes. Its time is that from the send to the receiver's answer, less a round trip, so
that what is left is from its first byte to its last; shares are of the payload that headers leave of the link (95.6 %).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pliant.spec.units import parse_rate, parse_time

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import append_record, read_records

RANK = Path(__file__).with_name("striping_rank.py")
LINKS = "1gbit:50ms,300mbit:125ms,1gbit:0ms"
CONNECTIONS = "1,2,4,8,16,32"
PAYLOAD = 0.956
ARMS = ("exchange", "all_reduce", "groups", "iperf3", "no_idle_restart", "chosen")
"""One message; an all-reduce; torch's own groups, a slice each; iperf3; as the first, with
tcp_slow_start_after_idle = 0 in the hosts' namespaces; as the first, over as many connections as Pliant chooses."""
ONCE = ("chosen",)


def trials(links: str, connections: str, arms: str, num_bytes: int) -> Iterator[dict[str, Any]]:
    for link in links.split(","):
        for arm in arms.split(","):
            for count in [0] if arm in ONCE else map(int, connections.split(",")):
                yield {"link": link, "arm": arm, "connections": count, "bytes": num_bytes}


def key_of(trial: dict[str, Any]) -> tuple[Any, ...]:
    return trial["link"], trial["arm"], trial["connections"], trial["bytes"]


def run(trial: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    rate, delay = trial["link"].split(":")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        emulate = [sys.executable, "-m", "pliant", "emulate", "--hosts", "2", "--rate", rate, "--delay", delay]
        emulate += [] if options.check else ["--no-check"]
        asked = {
            **trial,
            "repeats": options.repeats,
            "pause_s": options.pause_s,
            "out": str(out),
        }
        done = subprocess.run(
            [*emulate, "--", sys.executable, str(RANK), json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if not out.exists():
            return {"error": (done.stdout + done.stderr)[-500:]}
        return json.loads(out.read_text())


def share(row: dict[str, Any], seconds: list[float]) -> float:
    """Return the median rate over what headers leave of the link."""
    rate = parse_rate(row["link"].split(":")[0])
    return row["bytes"] / statistics.median(seconds) / (PAYLOAD * rate)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| link, one way | arm | connections | first | warm, median | slowest, fastest | after a pause | connecting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            continue
        warm = row["warm_s"]
        first = f"{share(row, row['first_s']):.0%}" if row["first_s"] else ""
        paused = f"{share(row, row['paused_s']):.0%}" if row["paused_s"] else ""
        lines.append(
            f"| {row['link'].replace(':', ', ')} | {row['arm']} | {row['found']} | {first} | {share(row, warm):.0%} "
            f"| {share(row, [max(warm)]):.0%}, {share(row, [min(warm)]):.0%} | {paused} | {row['connect_s']:.1f} s |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--links", default=LINKS)
    parser.add_argument("--connections", default=CONNECTIONS)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--bytes", type=int, default=96_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pause", dest="pause_s", type=parse_time, default=3.0)
    parser.add_argument("--check", action="store_true", help="measure the links before each trial")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    rows = read_records(options.out) if options.out.exists() else []
    done = {key_of(row) for row in rows if "error" not in row}
    asked = trials(options.links, options.connections, options.arms, options.bytes)
    for trial in [] if options.table else asked:
        if key_of(trial) in done:
            continue
        start_s = time.perf_counter()
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        row = {**trial, "at": at, "load": os.getloadavg()[0], **run(trial, options)}
        rows.append(row)
        append_record(options.out, row)
        said = row.get("error") or f"warm {share(row, row['warm_s']):.0%}"
        print(*key_of(trial), said, f"in {time.perf_counter() - start_s:.0f} s", flush=True)
    print(table([row for row in rows if row["bytes"] == options.bytes]))


if __name__ == "__main__":
    main()
