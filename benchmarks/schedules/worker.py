"""One rank of the benchmark of sums: `python worker.py JOB.json`, with torchrun's environment. See hosts.py."""

import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from arms import Arm, Given, agreed, arms_of

from pliant.comm import Comm, new_comm
from pliant.spec import Topology, load
from pliant_bench.harness.emit import emit

_TIMEOUT_S = 120.0
_WINDOW_S = 0.15
"""Calls that are predicted to be shorter than this are timed together, so that what the links' buckets let pass at once
is little beside what they do not."""
_MOST_CALLS = 20
_DRAWN = 100
"""Choices that the arm with new blocks goes through: more than are kept."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the ranks measure."""

    topology: str
    """Its file."""
    densities: tuple[float, ...]
    num_blocks: int
    block: int
    """Elements of a block."""
    rounds: int
    limit_s: float
    """Of each integer program; 0: none."""
    minutes: float
    """Divided among the densities; no round but the first begins later."""
    seed: int


def main(path: Path) -> None:
    """Measure all densities."""
    job = Job(**json.loads(path.read_text(encoding="utf-8")))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    topology = load(Topology, job.topology)
    comm = new_comm(dist.group.WORLD, _TIMEOUT_S)
    try:
        for density in job.densities:
            _measure(density, job, topology, comm)
    finally:
        comm.close()
    dist.destroy_process_group()


def _measure(density: float, job: Job, topology: Topology, comm: Comm) -> None:
    deadline_s = time.monotonic() + 60 * job.minutes / len(job.densities)
    rank, size = comm.rank, comm.size
    drawn = [_drawn(job, density, size, number) for number in range(_DRAWN)]
    generator = torch.Generator().manual_seed(job.seed * 1000 + rank)
    x = (30 * torch.randn(job.num_blocks * job.block, generator=generator)).round()  # whole: sums are exact
    given = Given(x=x, held=drawn[0], block=job.block, topology=topology, comm=comm)
    arms = arms_of(given, lambda number: drawn[number % _DRAWN], job.limit_s)
    wanted = _sums(given)
    for arm in arms:
        if not float((arm.run(0) - wanted[arm.wanted]).abs().max()) <= arm.off:  # nor may it be NaN
            raise RuntimeError(f"{arm.name} at {density:.2%} gave another sum on rank {rank}.")
    calls = {arm.name: min(_MOST_CALLS, max(1, math.ceil(_WINDOW_S / arm.predicted_s))) for arm in arms}
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for turn in range(job.rounds):
        if turn and not _all_agree(time.monotonic() < deadline_s, comm):
            break
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            seconds[arm.name].append(_timed(arm, calls[arm.name], turn, comm))
    if rank == 0:
        facts = [
            {
                "density": given.count / job.num_blocks,
                "arm": arm.name,
                "about": arm.about,
                "rounds": arm.rounds,
                "calls": calls[arm.name],
                "predicted_s": arm.predicted_s,
                "seconds": seconds[arm.name],
            }
            for arm in arms
        ]
        emit("density", {"records": facts, "union": float(given.held.any(0).mean())})


def _drawn(job: Job, density: float, size: int, number: int) -> np.ndarray:
    """Return (size, num_blocks) of bool: which blocks each rank has chosen, the same number of them for all."""
    count = max(1, round(density * job.num_blocks))
    generator = np.random.default_rng([job.seed, number, round(1e6 * density)])
    held = np.zeros((size, job.num_blocks), dtype=bool)
    for row in held:
        row[generator.choice(job.num_blocks, count, replace=False)] = True
    return held


def _sums(given: Given) -> dict[str, torch.Tensor]:
    """Return what each kind of sum comes to, found another way: dense all-reduces of masked vectors."""
    rows = given.x.view(-1, given.block)

    def summed(mask: torch.Tensor) -> torch.Tensor:
        y = (rows * mask[:, None]).contiguous()
        dist.all_reduce(y)
        return y.view(-1)

    chosen = torch.zeros(len(rows)).index_fill_(0, agreed(given), 1.0)
    return {
        "all": summed(torch.ones(len(rows))),
        "chosen": summed(torch.from_numpy(given.held[given.comm.rank]).float()),
        "agreed": summed(chosen),
    }


def _timed(arm: Arm, calls: int, turn: int, comm: Comm) -> float:
    """Return seconds per call, of the slowest rank."""
    comm.barrier()
    start_s = time.perf_counter()
    for call in range(calls):
        arm.run(1 + turn * calls + call)
    took = torch.tensor([(time.perf_counter() - start_s) / calls], dtype=torch.float64)
    comm.all_reduce(took, "max").wait()
    return float(took)


def _all_agree(yes: bool, comm: Comm) -> bool:
    agreed = torch.tensor([int(yes)])
    comm.all_reduce(agreed, "min").wait()
    return bool(agreed)


def written(job: Job, path: Path) -> None:
    """Write a job where its ranks read it."""
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
