"""One rank of the benchmark of embeddings: `python worker.py JOB.json`, with torchrun's environment. See hosts.py."""

import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from arms import Given, initial, made
from counted import counting
from dlrm import DenseNet
from jobs import UNLIMITED, Job
from session import meet
from steps import Arm, timed

from pliant.comm import new_comm
from pliant.recsys.batch import ClickBatch
from pliant.recsys.clicks import Clicks
from pliant.recsys.measuring import measured_rates
from pliant.recsys.rates import Rates
from pliant.spec import Topology, from_json, load, to_json
from pliant.spec.units import parse_rate
from pliant_bench.harness.emit import emit

_TIMEOUT_S = 300.0
_MOST_STEPS = 400
_DENSE_STEPS = 5
_MEASURING_S = 4.0
_TEST_STEP = 1 << 20
"""The first step of the data on which AUC is measured, after any on which arms train."""
_TIMED_STEP = 1 << 21


def main(path: Path) -> None:
    """Make all arms, let them learn, and time them at each rate."""
    job = Job.read(path)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torchrec|torch")
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    comm = new_comm(dist.group.WORLD, _TIMEOUT_S)
    topology = load(Topology, job.topologies[-1])
    clicks = Clicks(num_rows=job.num_rows, bag_sizes=job.pooling, exponent=job.skew, exponent_jitter=0.0, seed=job.seed)
    given = Given(
        job=job,
        topology=topology,
        comm=comm,
        bytes_per_s=parse_rate(job.rates[-1]),
        memory_bytes=job.memory_bytes,
        weights=initial(job),
        frequencies=clicks.frequencies(),
        rates=_machine(job),
        dense_sample_s=_dense_sample_s(job),
    )
    emit("rates", {**json.loads(to_json(given.rates)), "dense_sample_s": given.dense_sample_s})
    arms = _made(job, given)
    if job.train_steps:
        _learn(arms, clicks, job)
    batches = [clicks.batch(_TIMED_STEP + k, comm.rank, job.batch) for k in range(job.distinct_batches)]
    kinds = {arm.kind: arm for arm in arms}
    inputs = {kind: [arm.bags.input_of(batch) for batch in batches] for kind, arm in kinds.items()}
    link_bytes = {arm.name: _tried(arm, batches, inputs[arm.kind]) for arm in arms}
    for rate in (UNLIMITED, *job.rates):
        meet(job.flags, rate, dist.barrier, emit)
        _measure(rate, arms, batches, inputs, link_bytes, job)
    dist.barrier()
    comm.close()
    dist.destroy_process_group()


def _machine(job: Job) -> Rates:
    """Return the rates that were given, or those measured while all ranks work at once: the slowest. Collective."""
    if job.machine:
        return from_json(Rates, json.dumps(job.machine))
    dist.barrier()
    mine = measured_rates(limit_s=_MEASURING_S)
    names = [f.name for f in fields(mine) if f.name.endswith("_s")]
    slowest = torch.tensor([getattr(mine, name) for name in names], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return replace(mine, **dict(zip(names, slowest.tolist(), strict=True)))


def _dense_sample_s(job: Job) -> float:
    """Return what the dense part takes for a sample, on the slowest rank, while all compute. Collective."""
    torch.manual_seed(0)
    net = DenseNet(len(job.num_rows), job.dim)
    dense = torch.randn(job.batch, 13)
    bags = [torch.randn(job.batch, job.dim, requires_grad=True) for _ in job.num_rows]
    dist.barrier()
    took_s: list[float] = []
    for _ in range(_DENSE_STEPS):
        start_s = time.perf_counter()
        net(dense, bags).sum().backward()
        took_s.append(time.perf_counter() - start_s)
    slowest = torch.tensor([statistics.median(took_s)], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest) / job.batch


def _made(job: Job, given: Given) -> list[Arm]:
    """Return the arms that can be made; says why others cannot."""
    arms: list[Arm] = []
    for name in job.arms:
        try:
            arms.append(made(name, given))
        except Exception as error:  # noqa: BLE001  # planners refuse in many ways, on all ranks alike
            emit("refused", {"arm": name, "why": f"{type(error).__name__}: {str(error).strip()[:300]}"})
            continue
        emit("made", {"arm": name, "about": arms[-1].about})
    return arms


def _learn(arms: Sequence[Arm], clicks: Clicks, job: Job) -> None:
    """Train all arms on the same data, each batch once, and say what they have learned."""
    rank = dist.get_rank()
    for step in range(job.train_steps):
        batch = clicks.batch(step, rank, job.batch)
        for arm in arms:
            arm.step(batch, arm.bags.input_of(batch), None)
    tests = [clicks.batch(_TEST_STEP + k, rank, job.batch) for k in range(job.test_batches)]
    found = {arm.name: arm.auc(tests) for arm in arms}
    best = clicks.best_auc(num_samples=20_000, step=_TEST_STEP) if rank == 0 else 0.0
    exact = {arm.name: arm.exact for arm in arms}
    emit("auc", {"auc": found, "exact": exact, "best": best, "steps": job.train_steps})


def _tried(arm: Arm, batches: Sequence[ClickBatch], inputs: Sequence[Any]) -> float:
    """Make some untimed steps; says what a step sends, and returns what leaves the busiest host."""
    timed(arm, batches, inputs, 2)
    arm.run(batches, inputs, -arm.made % arm.period)
    with counting() as counter:
        arm.run(batches, inputs, arm.period)
    torch.autograd.set_multithreading_enabled(True)
    sent = torch.tensor([counter.sent_bytes / arm.period], dtype=torch.float64)
    dist.all_reduce(sent, dist.ReduceOp.MAX)
    found = timed(arm, batches, inputs, arm.period)
    emit("tried", {"arm": arm.name, "counted_bytes": float(sent), **asdict(found)})
    return found.link_bytes


def _measure(
    rate: str,
    arms: Sequence[Arm],
    batches: Sequence[ClickBatch],
    inputs: Mapping[str, Sequence[Any]],
    link_bytes: Mapping[str, float],
    job: Job,
) -> None:
    """Time all arms in turn, round after round, beginning with another each time."""
    bytes_per_s = math.inf if rate == UNLIMITED else parse_rate(rate)
    runs: dict[str, dict[str, Any]] = {}
    for arm in arms:
        needed_s = link_bytes[arm.name] / bytes_per_s
        if needed_s > job.longest_s:
            emit("left out", {"rate": rate, "arm": arm.name, "why": f"its bytes alone take {needed_s:.1f} s a step"})
            continue
        first = timed(arm, batches, inputs[arm.kind], arm.period)  # also lets idle connections grow their windows
        steps = min(_MOST_STEPS, math.ceil(job.window_s / first.step_s))
        runs[arm.name] = {"arm": arm, "steps": -(-steps // arm.period) * arm.period, "rounds": []}
    names = list(runs)
    for turn in range(job.rounds):
        first = turn * len(names) // job.rounds
        for name in names[first:] + names[:first]:
            run = runs[name]
            run["rounds"].append(asdict(timed(run["arm"], batches, inputs[run["arm"].kind], run["steps"])))
    rounds = {name: run["rounds"] for name, run in runs.items()}
    emit("rate", {"rate": rate, "samples": job.batch * dist.get_world_size(), "arms": rounds})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
