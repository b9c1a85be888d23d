"""Accuracy by step of every arm, three seeds: what does not depend on the network, and at a free pace what does.

    nice python benchmarks/grid/curves.py --results benchmarks/results/grid_curves_2core_DATE.jsonl
    python benchmarks/grid/curves.py --free --results benchmarks/results/grid_free_2core_DATE.jsonl

First 16-bit DDP trains at learning rates a factor of two apart, three seeds each. The one with the fewest steps to 85 %
is the rate of all arms with SGD; both neighbours must be worse. Then each arm trains, as processes on loopback. With
--free, arms at a free pace train in each cell instead, at the same rate (--curves names the file that has it); that
needs an idle machine and root. --cells, --arms and --seeds narrow what is trained. Cells do not go side by side: four
ranks that mostly wait at 10 Mbit/s still take a third of a core for their packets. A training that failed has a line
too: delete it to try again.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from grid.job import Job, Record, narrow, options
from grid.steps import base_step_s
from grid.trainings import TARGET, train
from grid.trials import FREE, HOSTS, LEARNING_RATES, SEEDS, read, topology_of

from pliant.network import emulate_cluster
from pliant.network.link_check import link_faults
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.metric import METRICS

KINDS = {"rate": 40.0, "curve": 40.0}
FREE_KINDS = {"free": 40.0}


def steps_to_target(record: Record) -> float:
    """Return the steps of a training to the target, on straight lines between its points; infinite if it fails."""
    reached = METRICS["images"].step_to(TARGET, record.get("curve", ()))
    return float("inf") if reached is None else reached


def best_rate(records: list[Record]) -> float:
    """Return the learning rate at which 16-bit DDP needs the fewest steps, mean over seeds.

    Raises:
        ValueError: Some trainings are missing, or the best rate has no worse neighbour on one side.

    """
    steps = {lr: [steps_to_target(r) for r in records if r["lr"] == lr] for lr in LEARNING_RATES}
    if any(len(found) < len(SEEDS) for found in steps.values()):
        raise ValueError("trainings at some learning rates are missing; run curves.py until no `rate` is left.")
    means = [statistics.mean(found) for found in steps.values()]
    best = means.index(min(means))
    if best in (0, len(means) - 1):
        raise ValueError(f"the best learning rate, {LEARNING_RATES[best]}, is the last; widen LEARNING_RATES.")
    return LEARNING_RATES[best]


def run_curves(job: Job) -> None:
    """Find the learning rate, then train all arms."""
    hosts = LocalHosts(HOSTS)
    for trial in job.left("rate"):
        train(job, [trial], trial["lr"], hosts)
    if not job.has_time():
        return
    rate = best_rate(job.lines.of_kind("rate"))
    for _, mine in itertools.groupby(job.left("curve"), key=lambda trial: trial["seed"]):
        train(job, list(mine), rate, hosts)


def run_in_cells(
    job: Job, kind: str, rate: float, cells: Sequence[str] = (), arms: Sequence[str] = (), seeds: Sequence[int] = ()
) -> None:
    """Train in each cell what is left there: first one seed in all cells, then the others.

    Each line has the step time of 16-bit DDP as it was just before, on the same hosts and machine, as `base_step_s`.

    Args:
        job: To which the trials belong.
        kind: Of the trials.
        rate: Largest learning rate.
        cells: Names of cells; all if empty.
        arms: Names of arms; all if empty.
        seeds: All if empty.

    """
    known = {cell["cell"]: cell for cell in read("cell")}
    order = {cell: number for number, cell in enumerate(known)}
    found = job.left(kind, cells, arms, seeds)
    left = sorted(found, key=lambda t: (t["seed"] != SEEDS[0], order[t["cell"]], t["seed"]))
    for (name, _), mine in itertools.groupby(left, key=lambda trial: (trial["cell"], trial["seed"] == SEEDS[0])):
        if not job.has_time():
            return
        with emulate_cluster(topology_of(known[name]), check=False) as cluster:
            about = {
                "links_wrong": link_faults(cluster.check_links()),
                "base_step_s": base_step_s(cluster, known[name]),
            }
            for _, alike in itertools.groupby(mine, key=lambda trial: trial["seed"]):
                train(job, list(alike), rate, cluster, about, known[name]["slow_share"])


def main() -> None:
    """Do what the command line asks for."""
    parser = options(__doc__ or "", ["results"])
    parser.add_argument("--free", action="store_true", help="train arms at a free pace, in each cell")
    narrow(parser, FREE, "with --free: ")
    parser.add_argument("--seeds", nargs="+", type=int, default=(), choices=SEEDS, help="with --free: of these alone")
    parser.add_argument("--curves", type=Path, help="with --free: file of the other curves, which has the rate")
    given = parser.parse_args()
    if given.free and given.curves is None:
        parser.error("--free trains at the rate that the other curves have found; name their file with --curves.")
    if (given.cells or given.arms or given.seeds) and not given.free:
        parser.error("--cells, --arms and --seeds are for --free: without it arms train on no network; leave them out.")
    job = Job(given.results, FREE_KINDS if given.free else KINDS, given.seconds, most=given.most)
    if given.free and not given.list:
        rate = best_rate(Job(given.curves, KINDS).lines.of_kind("rate"))
        run_in_cells(job, "free", rate, given.cells, given.arms, given.seeds)
    elif not given.list:
        run_curves(job)
    print(job.text())


if __name__ == "__main__":
    main()
