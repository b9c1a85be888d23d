"""Step times of every arm in every cell of the grid, over emulated links, with real computing.

    python benchmarks/grid/steps.py --results benchmarks/results/grid_steps_2core_DATE.jsonl --seconds 5400
    python benchmarks/grid/steps.py --results benchmarks/results/grid_steps_2core_DATE.jsonl --list

Needs an idle machine, and root. A world of hosts lives as long as its cell; its links are measured first. Each arm is
made and warmed up while nothing limits the links; then they get the cell's rates, and it takes turns (`Turns` of
`pliant bench --grid`): up to five, and none after the first that would end after 15 s. Its line has the step time of
each turn. An arm that fails gets a line with its last words, and the ranks start anew for the others; delete the line
to try again. 16-bit DDP comes once more at the end of each cell, so that one sees a drift of the machine.
"""

import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from grid.job import Job, Record, narrow, options
from grid.trials import ARMS, BASE, read, topology_of

from pliant.network import EmulatedCluster, emulate_cluster
from pliant.network.changes import without_limits
from pliant.network.link_check import link_faults
from pliant.spec import save
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.setup import MARK, OPEN, Cell, Setup, answer

KINDS = {"step": 12.0}
TURNS, ARM_SECONDS = 5, 15.0
RANK = Path(__file__).with_name("steps_rank.py")


def measure(
    cluster: EmulatedCluster, cell: Record, arms: Sequence[str], until_s: float, take: Callable[[Record], None]
) -> None:
    """Start ranks, which measure arms one after another; one that fails is taken as its `error`, and is the last.

    Args:
        cluster: Hosts with the cell's links.
        cell: Of the list.
        arms: Their names.
        until_s: No arm begins later; seconds since the epoch.
        take: Called with what was found for each arm, in order.

    Raises:
        RuntimeError: The ranks failed before the first arm, or after the last.

    """
    setup = Setup(
        mode="grid",
        models=("cnn",),
        arms=tuple(arms),
        rounds=TURNS,
        cell_seconds=ARM_SECONDS,
        cells=(Cell(model="cnn", rate=cell["cell"], delay="", slow_share=cell["slow_share"]),),
        emulated=True,
    )
    num_found, stage = 0, -1
    with tempfile.TemporaryDirectory() as folder:
        save(setup, Path(folder) / "setup.json")
        limits, progress = cluster.topology, Progress(watched=True)
        error: Exception | None = None

        def set_up(wanted: int) -> None:
            cluster.reshape(without_limits(limits) if wanted == OPEN else limits)

        def on_line(rank: int, line: str) -> None:
            nonlocal num_found, stage, error
            said: dict[str, Any] = json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else {"kind": ""}
            if said["kind"] == "want":
                stage = said["stage"]
                error = answer(Path(folder), said, set_up) or error
            elif said["kind"] == "arm":
                take({name: value for name, value in said.items() if name not in ("kind", "arm")})
                num_found += 1
            else:
                progress.take(rank, line)

        argv = [sys.executable, str(RANK), str(Path(folder) / "setup.json"), str(until_s)]
        results = cluster.run(argv, on_line=on_line)
        if error is not None:
            raise error
        cluster.reshape(limits)  # an arm that failed while it was made has left it open
    failed = [r for r in results if r.exit_code and not r.ended_by_us] or [r for r in results if r.exit_code]
    if failed:
        words = progress.last_words(failed[0].rank)
        if stage < 1 or num_found == len(arms):
            raise RuntimeError(f"rank {failed[0].rank} failed, but no arm was measured then:\n{words}")
        take({"error": words.strip().rpartition("\n")[2][:400], "rank": failed[0].rank})


def base_step_s(cluster: EmulatedCluster, cell: Record) -> float:
    """Return the step time of 16-bit DDP on a cell's hosts, median of its turns. Raises RuntimeError if it fails."""
    found: list[Record] = []
    measure(cluster, cell, [BASE], float("inf"), found.append)
    if "error" in found[0]:
        raise RuntimeError(f"{BASE} failed in the cell {cell['cell']}: {found[0]['error']}")
    return statistics.median(found[0]["step_s"])


def run(job: Job, cells: Sequence[str] = (), arms: Sequence[str] = ()) -> None:
    """Measure what is left, cell by cell; in these cells and of these arms alone, if there are any."""
    known = {cell["cell"]: cell for cell in read("cell")}
    for name, group in itertools.groupby(job.left("step", cells, arms), key=lambda trial: trial["cell"]):
        left = list(group)
        if not job.has_time():
            return
        with emulate_cluster(topology_of(known[name]), check=False) as cluster:
            faults = link_faults(cluster.check_links())
            print(f"{name}: links are {'as asked for' if not faults else '; '.join(faults)}", flush=True)

            def take(found: Record, left: list[Record] = left, faults: list[str] = faults) -> None:
                job.add(left.pop(0), {**found, "links_wrong": faults})

            while left and job.has_time():
                job.begin()
                arms = [trial["arm"] for trial in left[: int(min(len(left), job.may))]]
                measure(cluster, known[name], arms, job.until_s, take)


def main() -> None:
    """Do what the command line asks for."""
    parser = options(__doc__ or "", ["results"])
    narrow(parser, ARMS)
    given = parser.parse_args()
    job = Job(given.results, KINDS, given.seconds, most=given.most)
    if not given.list:
        run(job, given.cells, given.arms)
    print(job.text())


if __name__ == "__main__":
    main()
