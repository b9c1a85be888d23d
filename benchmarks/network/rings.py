"""Gloo's own all-reduce between emulated hosts, beside the prediction of its ring.

    python benchmarks/network/rings.py --out benchmarks/results/rings_2core_2026-11-29.jsonl
    python benchmarks/network/rings.py --out FILE --table

Networks are even or not, with and without delays. Each line of the file is one network and one size: the median time
of all-reduces with a pause before each, and the mean of some that follow one another. It is predicted by `Links`, and
as a step that computes nothing: where hosts differ each rank has a clock of its own there.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from dataset.clusters import pairs, uneven
from sharded.journal import Lines, place, run_ranks

from pliant.network import emulate_cluster
from pliant.schedules.dense import ring_s
from pliant.simulator import simulate
from pliant.spec import SyncPlan, TensorSpec, Topology, Workload
from pliant_bench.harness.emit import emit

MBIT = 1e6 / 8
SIZES = (20_000, 100_000, 300_000, 1_000_000, 2_400_000, 6_000_000, 12_000_000)
"""Bytes of float32."""
REPEATS, FOLLOWING, PAUSE_S = 7, 4, 0.02
BURST = 8_000


def _even(num: int, mbit: float, delay_s: float) -> Topology:
    return uneven([(mbit * MBIT, mbit * MBIT)] * num, delay_s=delay_s)


CELLS = {
    "4 hosts of 100 Mbit/s": _even(4, 100, 0.0),
    "4 hosts of 100 Mbit/s, 5 ms": _even(4, 100, 5e-3),
    "3 hosts of 200 Mbit/s, 15 ms": _even(3, 200, 15e-3),
    "3 hosts of 150 to 250 Mbit/s, 15 ms": uneven([(r * MBIT, r * MBIT) for r in (200, 150, 250)], delay_s=15e-3),
    "4 hosts, pairs of 600 Mbit/s": pairs(4, 1, "600mbit", random.Random(15)),
    "6 hosts, pairs of 200 Mbit/s": pairs(6, 1, "200mbit", random.Random(14)),
}


def predicted_s(num_bytes: int, topology: Topology) -> dict[str, float]:
    """Return what a ring is predicted to take: by its rounds, and as a step of a model that computes nothing."""
    tensor = TensorSpec(name="one", shape=(num_bytes // 4,), dtype="float32", layer="", ready_s=0.0)
    step = simulate(SyncPlan(), Workload(name="", tensors=(tensor,), forward_s=0.0, backward_s=0.0), topology)
    return {"rounds_s": ring_s(num_bytes, topology), "step_s": step.step_s}


def rank() -> None:
    """Carry out one rank's part."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for num_bytes in SIZES:
        x = torch.zeros(num_bytes // 4)
        alone = [_took_s(lambda x=x: dist.all_reduce(x), PAUSE_S) for _ in range(REPEATS)]
        following = _took_s(lambda x=x: [dist.all_reduce(x) for _ in range(FOLLOWING)], 0.0) / FOLLOWING
        seen = torch.tensor([statistics.median(alone[2:]), following])
        dist.all_reduce(seen, dist.ReduceOp.MAX)
        alone_s, following_s = seen.tolist()
        emit("ring", {"bytes": num_bytes, "alone_s": alone_s, "following_s": following_s})
    dist.barrier()
    dist.destroy_process_group()


def _took_s(run: Callable[[], object], pause_s: float) -> float:
    dist.barrier()
    time.sleep(pause_s)
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def measure(lines: Lines, cell: str) -> None:
    """Bring up a network, and keep what its ranks say."""
    with emulate_cluster(CELLS[cell], burst=BURST) as hosts:
        run_ranks(hosts, __file__, ["--rank"], lambda line: lines.add({"cell": cell, **line, **place()}))


def table(lines: Lines) -> str:
    """Return seen times, and predicted ones over them, with the topology as it was set up."""
    rows = ["| network | MB | seen, ms | predicted over seen | with clocks of ranks |", "|---|---|---|---|---|"]
    for line in lines.of_kind("ring"):
        ahead, size = predicted_s(line["bytes"], CELLS[line["cell"]]), line["bytes"] / 1e6
        seen_s = line["alone_s"]
        over = " | ".join(f"{ahead[name] / seen_s:.2f}" for name in ("rounds_s", "step_s"))
        rows.append(f"| {line['cell']} | {size:.3g} | {1e3 * seen_s:.1f} | {over} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON-lines file, appended to")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--rank", action="store_true", help="be a rank, with torchrun's environment")
    given = parser.parse_args()
    if given.rank:
        rank()
        return
    if given.out is None:
        parser.error("give a file with --out.")
    lines = Lines(given.out, ("kind", "cell", "bytes"))
    for cell in CELLS:
        if not (given.table or lines.has("ring", cell, SIZES[-1])):
            measure(lines, cell)
    print(table(lines))


if __name__ == "__main__":
    main()
