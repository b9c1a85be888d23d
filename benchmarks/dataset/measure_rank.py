"""One rank of `measure.py`: trains each cell's model for real, and times one plan after the other.

``python benchmarks/dataset/measure_rank.py JOB.json``, with torchrun's environment
"""

import faulthandler
import itertools
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))

from dataset.models import MODELS, OPTIMIZERS
from dataset.trial_list import plan_of, topology_of

import pliant
from pliant.planner.schedules import with_schedules
from pliant.simulator import simulate
from pliant.spec import Topology, Workload, to_json
from pliant_bench.collect.trial import run_trial
from pliant_bench.harness.emit import emit
from pliant_bench.harness.wire import busiest

TIMEOUT_S, HUNG_S = 25.0, 150.0
OBSERVED_STEPS, BATCHES = 8, 8
FAULT_AT_STEP = 3


class AbortedTrialError(Exception):
    """The plan's steps take too long, compared with the control's; raised on all ranks alike."""


class Subject:
    """A model in DDP whose plan is switched from trial to trial, as `run_trial` takes it. Collective.

    Args:
        cell: Model and optimizer.
        topology: The hosts.
        slow_share: Speed of the last host's ranks over that of the others; 0: all are alike.
        workload: Observed before; None to observe it now.

    """

    def __init__(
        self, cell: dict[str, Any], topology: Topology, slow_share: float, workload: Workload | None = None
    ) -> None:
        torch.manual_seed(0)
        self._task = MODELS[cell["model"]]
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batches = itertools.cycle([self._task.batch(generator) for _ in range(BATCHES)])
        module = self._task.model()
        self._optimizer = OPTIMIZERS[cell["optimizer"]](module.parameters())
        self._model: torch.nn.Module = module
        self._pause_s, self._limit_s, self.fault = 0.0, 0.0, ""
        self._taken_s: list[float] = []
        self.workload = workload or self._observe(cell["model"])
        last = topology.ranks_of(len(topology.hosts) - 1)
        if slow_share and dist.get_rank() in last:
            alone_s = self.workload.forward_s + self.workload.backward_s + self.workload.step_s
            self._pause_s = alone_s * (1 / slow_share - 1)
        host = next(k for k in range(len(topology.hosts)) if dist.get_rank() in topology.ranks_of(k))
        rack = f"rack{topology.rack_of()[host]}" if topology.racks else ""
        self._model = DistributedDataParallel(module, gradient_as_bucket_view=True)
        # Comparing the replicas every 100 steps would fall on some trials and not on others.
        self.run = pliant.relax(self._model, self._optimizer, "bf16", rack=rack, timeout_s=TIMEOUT_S, agreement_every=0)

    def begin(self, fault: str, limit_s: float) -> None:
        """Let a trial begin, with a fault or a limit of its step time, in s; 0: no limit."""
        self.fault, self._limit_s, self._taken_s = fault, limit_s, []

    def pace(self, *, waiting: bool = True) -> None:
        """End the trial where the warm-up, which is over when there shall be waiting, was too slow. Collective."""
        if not (waiting and self._limit_s):
            return
        warm_s = self._taken_s[1:] or self._taken_s
        mean_s, limit_s = busiest([sum(warm_s) / len(warm_s)])[0], self._limit_s
        if mean_s > limit_s:
            raise AbortedTrialError(f"{mean_s:.3g} s a step in the warm-up, and the limit is {limit_s:.3g} s.")

    def step(self) -> None:
        """Make a training step."""
        began_s = time.perf_counter()
        if self.fault and len(self._taken_s) == FAULT_AT_STEP and dist.get_rank() == 1:
            self._fail()
        self._optimizer.zero_grad()
        loss = self._task.loss(self._model, next(self._batches))
        if self._pause_s:
            time.sleep(self._pause_s)
        loss.backward()
        self._optimizer.step()
        self._taken_s.append(time.perf_counter() - began_s)

    def abandon(self) -> None:
        """Remove what a failed trial has left, without asking the other ranks."""
        self.run.__exit__(RuntimeError, RuntimeError("a trial has failed"), None)

    def _fail(self) -> None:
        if self.fault == "raises":
            raise RuntimeError("this rank was made to fail.")
        if self.fault == "lost":
            os._exit(3)
        if self.fault == "late":
            time.sleep(3 * TIMEOUT_S)

    def _observe(self, name: str) -> Workload:
        dist.barrier()
        with pliant.observe(
            self._model, self._optimizer, steps=OBSERVED_STEPS, gradient_steps=0, timeout_s=TIMEOUT_S
        ) as seen:
            while not seen.done:
                self.step()
        return seen.workload(name)


def measure_cell(cell: dict[str, Any], job: dict[str, Any]) -> bool:
    """Run what is left of a cell; return whether there was time for all of it."""
    topology, slow_share = topology_of(job["cluster"]), job["cluster"]["slow_share"]
    subject = Subject(cell, topology, slow_share)
    emit("session", {"cell": cell["cell"], "workload": json.loads(to_json(subject.workload))})
    subject.begin("", 0.0)
    control = plan_of(cell["control"])
    found = run_trial(subject, control, 0.0, wire=True)  # DDP lays out its buckets, and TCP finds its window
    control_s = _step_s(found)
    for one in cell["trials"]:
        if busiest([time.time()])[0] > job["until_s"]:
            return False
        emit("begin", {"cell": cell["cell"], "number": one["number"]})
        subject.begin(one["fault"], one["abort_over"] * control_s if one["origin"] != "control" else 0.0)
        faulthandler.dump_traceback_later(HUNG_S, exit=True)  # nobody waits for ever
        # "auto" would go around the ring for more sums than these; what all ranks have observed is the same.
        plan = with_schedules(plan_of(one), subject.workload, topology)
        cycle = simulate(plan, subject.workload, topology).period
        found = run_trial(subject, plan, job["trial_seconds"], wire=True, cycle=cycle)
        faulthandler.cancel_dump_traceback_later()
        mark = f"{AbortedTrialError.__name__}: "
        if mark in found["reason"]:
            found |= {"status": "aborted", "reason": found["reason"].partition(mark)[2]}
        emit("trial", {"cell": cell["cell"], "number": one["number"], "num_warm": len(subject._taken_s), **found})
        if found["status"] == "failed":  # what it left cannot be relied on
            subject.abandon()
            subject = Subject(cell, topology, slow_share, subject.workload)
        elif one["origin"] == "control":
            control_s = _step_s(found)
    subject.run.close()
    return True


def _step_s(found: dict[str, Any]) -> float:
    """Return the step time of a control, or 0, which limits nothing, where it failed."""
    means = sorted(mean for mean, _, _ in found.get("samples", ()))
    return means[len(means) // 2] if means else 0.0


def main(path: str) -> None:
    """Measure the cells of a job."""
    job = json.loads(Path(path).read_text())
    torch.set_num_threads(1)  # ranks share this machine
    dist.init_process_group("gloo", timeout=timedelta(seconds=2 * TIMEOUT_S))
    for cell in job["cells"]:
        if not measure_cell(cell, job):
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
