"""Measured rows of the data set: real training on emulated hosts, one plan after the other.

    python benchmarks/dataset/measure.py --seconds 14400
    python benchmarks/dataset/measure.py --list

Runs what has no line yet of `trials_seed1.jsonl`, in its order, and writes a line for each trial, and one for each
stay of the ranks in a cell. Needs an idle machine, and root. Hosts live as long as their cluster, and ranks as long as
no plan ends them: a plan is put in force in the place of the one before. A trial whose ranks end, or hang, gets a line
that says so, and the others go on in new ranks. Afterwards `build.py` makes rows of the lines.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from dataset.schema import LINES
from dataset.trial_list import LIST, Record, read, topology_of
from house.versions import commit_of, machine
from sharded.journal import Lines

from pliant.network import EmulatedCluster, RankResult, emulate_cluster
from pliant.network.link_check import link_faults
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.setup import MARK

KEY = ("kind", "cell", "number")
RANK = Path(__file__).with_name("measure_rank.py")
GUESS_S = 10.0


class Campaign:
    """Trials of the list, and which have a line.

    Args:
        lines: File of the lines.
        seconds: No trial begins later; 0: no limit.
        trial_seconds: Longest that a trial goes on to take turns.
        trials: The list.
        only: Clusters that are measured; empty for all.
        most: Trials of each cell that are measured; 0 for all.

    """

    def __init__(
        self, lines: Path, seconds: float, trial_seconds: float, trials: Path, only: list[str], most: int
    ) -> None:
        self.lines = Lines(lines, KEY)
        self.until_s = time.time() + seconds if seconds else float(2**40)
        self.trial_seconds = trial_seconds
        self.clusters = [one for one in read("cluster", trials) if not only or one["cluster"] in only]
        self._cells, self._trials = read("cell", trials), read("trial", trials)
        self._most = most
        self._about = {"commit": commit_of("HEAD"), **machine()}

    def cells(self, cluster: str) -> list[Record]:
        """Return the cells of a cluster that have trials left, each with its control and what is left."""
        found: list[Record] = []
        for cell in (one for one in self._cells if one["cluster"] == cluster):
            mine = [one for one in self._trials if one["cell"] == cell["cell"]]
            left = [one for one in mine[: self._most or None] if not self.has(one)]
            if left:
                found.append({**cell, "control": mine[0], "trials": left})
        return found

    def has(self, trial: Record) -> bool:
        """Say whether a trial has a line, of a failure too."""
        return self.lines.has("trial", trial["cell"], trial["number"])

    def has_time(self) -> bool:
        """Say whether a further trial may begin."""
        return time.time() < self.until_s

    def add(self, kind: str, cell: str, number: int | str, found: Record) -> None:
        """Write a line."""
        now = {"load": round(os.getloadavg()[0], 2), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self.lines.add({"kind": kind, "cell": cell, "number": number, **found, **self._about, **now})

    def text(self) -> str:
        """Say what is left, and about how long it takes."""
        done = self.lines.of_kind("trial")
        each_s = sum(one["wall_s"] for one in done) / len(done) if done else GUESS_S
        left = [one for cluster in self.clusters for cell in self.cells(cluster["cluster"]) for one in cell["trials"]]
        kinds = {status: sum(one["status"] == status for one in done) for status in ("ok", "failed", "aborted")}
        return f"{len(done)} done, {kinds}; {len(left)} left, about {len(left) * each_s / 60:.0f} min at {each_s:.1f} s"


class World:
    """One life of the ranks on a cluster: takes what they say, and writes the lines.

    Args:
        campaign: What is left, and its lines.
        cluster: The cluster's record.
        links: What was found of its links.

    """

    def __init__(self, campaign: Campaign, cluster: Record, links: Record) -> None:
        self._campaign, self._cluster, self._links = campaign, cluster, links
        self._session, self._begun = "", ("", -1)
        self._since_s = time.monotonic()
        self._progress = Progress(watched=True)

    def run(self, hosts: EmulatedCluster) -> None:
        """Measure until all is done, the time is over, or a trial ends the ranks.

        Raises:
            RuntimeError: The ranks failed before any trial.

        """
        cells = self._campaign.cells(self._cluster["cluster"])
        with tempfile.TemporaryDirectory() as folder:
            job = {"cluster": self._cluster, "cells": cells, "until_s": self._campaign.until_s}
            path = Path(folder) / "job.json"
            path.write_text(json.dumps({**job, "trial_seconds": self._campaign.trial_seconds}))
            results = hosts.run([sys.executable, str(RANK), str(path)], on_line=self._take)
        failed = [r for r in results if r.exit_code and not r.ended_by_us] or [r for r in results if r.exit_code]
        if failed:
            self._lost(failed[0])

    def _take(self, rank: int, line: str) -> None:
        if rank or not line.startswith(MARK):
            self._progress.take(rank, line)
            return
        said: dict[str, Any] = json.loads(line.removeprefix(MARK))
        if said["kind"] == "session":
            self._session = uuid.uuid4().hex[:10]
            self._campaign.add("session", said["cell"], self._session, {"workload": said["workload"], **self._links})
        elif said["kind"] == "begin":
            self._begun = (said["cell"], said["number"])
        elif said["kind"] == "trial":
            self._keep({name: value for name, value in said.items() if name not in ("kind", "cell", "number")})

    def _keep(self, found: Record) -> None:
        cell, number = self._begun
        if "samples" in found:
            found = {**found, "samples": [[float(f"{s:.5g}") for s in turn] for turn in found["samples"]]}
        now_s = time.monotonic()
        self._campaign.add(
            "trial", cell, number, {**found, "session": self._session, "wall_s": round(now_s - self._since_s, 2)}
        )
        self._since_s, self._begun = now_s, ("", -1)
        print(f"{cell} {number}: {found['status']} {found['reason'][:100]}", flush=True)

    def _lost(self, result: RankResult) -> None:
        words = self._progress.last_words(result.rank)
        if self._begun[1] < 0:
            raise RuntimeError(f"rank {result.rank} failed with {result.exit_code}, but no trial was begun:\n{words}")
        why = "no end in time" if "Timeout (" in words else words.strip().rpartition("\n")[2][:200]
        self._keep({"status": "failed", "reason": f"rank {result.rank}: exit code {result.exit_code}: {why}"})


def run(campaign: Campaign) -> None:
    """Measure what is left, cluster by cluster."""
    for cluster in campaign.clusters:
        if not campaign.cells(cluster["cluster"]) or not campaign.has_time():
            continue
        with emulate_cluster(topology_of(cluster), check=False) as hosts:
            reports = hosts.check_links()
            links = {"links": [asdict(report) for report in reports], "links_wrong": link_faults(reports)}
            print(f"{cluster['cluster']}: {'; '.join(links['links_wrong']) or 'links are as asked for'}", flush=True)
            while campaign.cells(cluster["cluster"]) and campaign.has_time():
                World(campaign, cluster, links).run(hosts)


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=LINES, help="file of lines, one a trial")
    parser.add_argument("--trials", type=Path, default=LIST, help="list of trials")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no trial later than this; 0: no limit")
    parser.add_argument("--trial-seconds", type=float, default=4.0, help="take no further turn of a trial after this")
    parser.add_argument("--only", nargs="*", default=[], help="clusters, by name")
    parser.add_argument("--most", type=int, default=0, help="measure so many trials of a cell only; 0: all")
    parser.add_argument("--list", action="store_true", help="only say what is left")
    given = parser.parse_args()
    campaign = Campaign(given.lines, given.seconds, given.trial_seconds, given.trials, given.only, given.most)
    if not given.list:
        run(campaign)
    print(campaign.text())


if __name__ == "__main__":
    main()
