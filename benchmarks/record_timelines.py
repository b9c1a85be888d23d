"""Record what emulated hosts do in a few steps of the small network of `pliant bench`, under several plans.

``python benchmarks/record_timelines.py FOLDER [HOSTS] [RATE] [PLAN ...]`` emulates the hosts and runs itself on each.
It writes ``FOLDER/workload.json`` (computing alone, as pliant.observe sees it), ``topology.json`` (as the probe finds
it), and for each plan its ``plan.json`` and rank 0's timeline.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.comm import new_comm
from pliant.network import probe
from pliant.spec import save
from pliant_bench.models import TASKS

MODEL, STEPS, WARMUP_STEPS = "cnn", 4, 5
PLANS = ("allreduce", "bytegrad")


def main(folder: Path, hosts: str, rate: str, plans: list[str]) -> None:
    pliant_command = [sys.executable, "-m", "pliant.cli.main"]
    emulate = ["emulate", "--hosts", hosts, "--rate", rate, "--timeout", "5min"]
    subprocess.run(
        [*pliant_command, *emulate, "--", sys.executable, __file__, str(folder), hosts, rate, *plans], check=True
    )


def rank(folder: Path, plans: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task, me = TASKS[MODEL], dist.get_rank()
    batch = task.batch(torch.Generator().manual_seed(me))

    def made() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        torch.manual_seed(0)
        ddp = DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
        return ddp, torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)

    ddp, optimizer = made()
    with pliant.observe(ddp, optimizer, steps=10, gradient_steps=0) as seen:
        while not seen.done:
            optimizer.zero_grad()
            with ddp.no_sync():
                task.loss(ddp, batch).backward()
            optimizer.step()
    workload = seen.workload(MODEL)
    comm = new_comm(dist.group.WORLD, 60.0)
    topology = probe(comm)
    comm.close()
    if me == 0:
        save(workload, folder / "workload.json")
        save(topology, folder / "topology.json")
    for name in plans:
        ddp, optimizer = made()
        with pliant.relax(ddp, optimizer, name, agreement_every=0) as run, tempfile.TemporaryDirectory() as scratch:
            recording = pliant.profile(
                run, folder / name if me == 0 else scratch, steps=STEPS, warmup_steps=WARMUP_STEPS
            )
            while recording.open:
                optimizer.zero_grad()
                task.loss(ddp, batch).backward()
                optimizer.step()
            if me == 0:
                save(run.plan, folder / name / "plan.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, hosts, rate, *plans = [*sys.argv[1:], *("4", "100mbit")[len(sys.argv) - 2 :]]
    chosen = plans or list(PLANS)
    if "RANK" in os.environ:
        rank(Path(folder), chosen)
    else:
        main(Path(folder).absolute(), hosts, rate, chosen)
