"""One rank of a collection: ``python -m pliant_bench.collect.worker JOB.json``, with torchrun's environment.

What else travels between the ranks and who started them are files beside JOB.json.
"""

import faulthandler
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pliant.simulator import simulate
from pliant.spec import load
from pliant_bench.collect.job import CHECK, Job
from pliant_bench.collect.trial import ReplayedModel, run_trial
from pliant_bench.harness.emit import emit
from pliant_bench.harness.setup import OPEN
from pliant_bench.harness.stages import NetworkRequests

__all__ = ["main"]


def main(path: str) -> None:
    """Run all places of a job, in one process group."""
    job, folder = load(Job, path), Path(path).parent
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=max(300.0, job.timeout_s)))
    network = NetworkRequests(folder)
    for number, place in enumerate(job.places):
        network.wait_for(OPEN)
        with _ends_within(job.timeout_s):
            model = ReplayedModel(place, job)
        network.wait_for(number)
        emit("session", {"place": number, "compute_s": model.compute_s})
        for entry in place.entries:
            emit("begin", {"place": number, "number": entry.number})
            with _ends_within(job.timeout_s):
                plan = entry.genes.plan(entry.name)
                cycle = simulate(plan, place.workload, place.topology).period
                found = run_trial(model, plan, job.seconds_per_trial, wire=job.emulated, cycle=cycle)
            emit("trial", {"place": number, "number": entry.number, **found})
            if found["status"] != "ok":  # what it left cannot be relied on
                with _ends_within(job.timeout_s):
                    model.abandon()
                    model = ReplayedModel(place, job)
        network.wait_for(CHECK)
        network.wait_for(OPEN)
        with _ends_within(job.timeout_s):
            model.run.close()
    dist.barrier()
    dist.destroy_process_group()


@contextmanager
def _ends_within(timeout_s: float) -> Generator[None]:
    """End this process, with a traceback of all threads, if the block does not end in time: nobody waits for ever."""
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1])
