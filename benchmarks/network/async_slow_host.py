"""Training beside a slow host, under two versions of Pliant: the same samples, paired seeds.

    python benchmarks/network/async_slow_host.py run --pliant OLD/.venv/bin/pliant --json old.json
    python benchmarks/network/async_slow_host.py run --pliant .venv/bin/pliant --json new.json
    python benchmarks/network/async_slow_host.py table --old old.json --new new.json

`run` asks the laboratory of a version for trainings with five seeds on four emulated hosts, the last at a quarter of
the others' speed. Each is judged at its end alone: versions before 2026-11-27 let ranks wait for each other at every
point of a curve. `table` gives the differences of the accuracies, seed by seed. Exit status 1 if their mean is below 0
by more than the spread of the seeds (twice the standard error), or a step takes longer than 1.2 times the old one.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ARMS = "async_average,gossip(free=1)"
SEEDS = 5
LONGER = 1.2


def run(pliant: Path, json_file: Path) -> int:
    """Train under one version."""
    network = ["--hosts", "4", "--rate", "100mbit", "--slow-host", "0.25"]
    at_the_end = ["--evaluate-every", "1000000"]
    asked = ["--train", *at_the_end, "--seeds", str(SEEDS), "--algorithms", ARMS, "--json", str(json_file)]
    return subprocess.run([str(pliant), "bench", *network, *asked], check=False).returncode


def outcomes(json_file: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (arm, seed) -> last accuracy, seconds a step."""
    records: list[dict[str, Any]] = json.loads(json_file.read_text())["records"]
    trained = [record for record in records if record["kind"] == "train"]
    last = {(record["arm"], record["seed"]): record["curve"][-1] for record in trained}
    return {key: (point["accuracy"], point["time_s"] / point["step"]) for key, point in last.items()}


def table(old_file: Path, new_file: Path) -> int:
    """Print the differences; return the exit status."""
    old, new = outcomes(old_file), outcomes(new_file)
    worse = False
    print("| arm | accuracy before | now | difference, points | twice its error | step before | now |")
    print("|---|---|---|---|---|---|---|")
    for arm in dict.fromkeys(arm for arm, _ in old):
        seeds = [seed for name, seed in old if name == arm and (arm, seed) in new]
        differences = [100 * (new[arm, seed][0] - old[arm, seed][0]) for seed in seeds]
        mean, spread = statistics.mean(differences), 2 * statistics.stdev(differences) / len(seeds) ** 0.5
        was, now = ([found[arm, seed] for seed in seeds] for found in (old, new))
        accuracies = [statistics.mean(row[0] for row in rows) for rows in (was, now)]
        steps_s = [statistics.median(row[1] for row in rows) for rows in (was, now)]
        print(
            f"| {arm} | {accuracies[0]:.2%} | {accuracies[1]:.2%} | {mean:+.2f} | {spread:.2f} | "
            f"{steps_s[0] * 1e3:.1f} ms | {steps_s[1] * 1e3:.1f} ms |"
        )
        worse |= mean < -spread or steps_s[1] > LONGER * steps_s[0]
    return int(worse)


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("act", choices=["run", "table"])
    for name in ("--pliant", "--json", "--old", "--new"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    return run(given.pliant, given.json) if given.act == "run" else table(given.old, given.new)


if __name__ == "__main__":
    sys.exit(main())
