"""How near `pliant probe` comes to what emulated hosts were asked for: python benchmarks/probe.py OUT.md [REPEATS]."""

import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pliant.spec import Topology, load

PLIANT = [sys.executable, "-m", "pliant.cli.main"]
RATES_MBIT, DELAYS_MS, HOSTS = (10, 100, 1000), (0, 5, 20), 4


def cell(rate: int, delay: int, folder: Path) -> tuple[Topology, float]:
    out = folder / "topology.json"
    emulate = ["emulate", "--hosts", str(HOSTS), "--rate", f"{rate}mbit", "--delay", f"{delay}ms", "--no-check"]
    start = time.perf_counter()
    subprocess.run(
        [*PLIANT, *emulate, "--", *PLIANT, "probe", "--out", str(out)],
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return load(Topology, out), time.perf_counter() - start


def main(out: Path, repeats: int) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in RATES_MBIT:
            for delay in DELAYS_MS:
                ratios, delays, links, took = [], [], 0, []
                for _ in range(repeats):
                    found, seconds = cell(rate, delay, Path(folder))
                    took.append(float(found.provenance.rpartition("took ")[2].partition("s;")[0]))
                    links += len(found.links)
                    for host in found.hosts:
                        ratios += [r * 8e-6 / rate for r in (host.send_bytes_per_s, host.receive_bytes_per_s)]
                        delays.append(host.delay_s * 1e3)
                spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
                rows.append(
                    f"| {rate} Mbit/s | {delay} ms | {statistics.median(ratios):.3f} | {spread} "
                    f"| {statistics.median(delays):.2f} ms | {min(delays):.2f} .. {max(delays):.2f} ms | {links} "
                    f"| {statistics.median(took):.1f} s |"
                )
                print(rows[-1], f"load {os.getloadavg()[0]:.1f}, {seconds:.0f} s in all", flush=True)
    head = (
        f"`python benchmarks/probe.py {out.name} {repeats}`, {datetime.date.today()}, {os.cpu_count()} cores "
        f"({platform.machine()}), load {os.getloadavg()[0]:.0f} at the end; {HOSTS} hosts, {repeats} runs of "
        f"`pliant probe` a cell, so {HOSTS * repeats} hosts; rates of both directions, over what was asked for\n\n"
        "| asked for | delay | rate, median | all | delay found, median | all | links | network part took |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    out.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
