"""One rank of `predictions.py`: observes a model that computes for real, then times one algorithm after the other.

``python predictions_rank.py MODEL SECONDS ALGORITHM...``, with torchrun's environment.
"""

import itertools
import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from arms import MODELS
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.algorithms.by_name import plan_of_text
from pliant.spec import to_json
from pliant_bench.collect.trial import run_trial
from pliant_bench.harness.emit import emit

TIMEOUT_S = 60.0


class Subject:
    """A model in DDP whose plan is switched from trial to trial, as `run_trial` takes it. Collective."""

    def __init__(self, model_name: str) -> None:
        torch.manual_seed(0)
        self._task = MODELS[model_name]()
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batches = itertools.cycle([self._task.batch(generator) for _ in range(16)])
        module = self._task.model()
        self._optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        self._model = module
        dist.barrier()
        with pliant.observe(module, self._optimizer, steps=15, gradient_steps=0, timeout_s=TIMEOUT_S) as seen:
            while not seen.done:
                self.step()
        self.workload = seen.workload(model_name)
        # DDP's own buckets, the first of 1 MiB, as the simulator takes them: a size given would be the first's too.
        self._model = DistributedDataParallel(module, gradient_as_bucket_view=True)
        self.run = pliant.relax(self._model, self._optimizer, "bf16", timeout_s=TIMEOUT_S, agreement_every=0)

    def pace(self, *, waiting: bool = True) -> None:
        """Do nothing: these steps take the time that they take."""

    def step(self) -> None:
        """Make a training step."""
        self._optimizer.zero_grad()
        self._task.loss(self._model, next(self._batches)).backward()
        self._optimizer.step()

    def abandon(self) -> None:
        """Remove what a failed trial has left, without asking the other ranks."""
        self.run.__exit__(RuntimeError, RuntimeError("a trial has failed"), None)


def main() -> None:
    model_name, seconds, *algorithms = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    subject = Subject(model_name)
    emit("workload", {"workload": json.loads(to_json(subject.workload))})
    run_trial(subject, plan_of_text("bf16"), 0.0, wire=True)  # DDP lays out its buckets, and TCP finds its window
    for algorithm in algorithms:
        plan = plan_of_text(algorithm)
        found = run_trial(subject, plan, float(seconds), wire=True)
        emit("arm", {"algorithm": algorithm, "plan": json.loads(to_json(plan)), **found})
        if found["status"] != "ok":  # what it left cannot be relied on
            subject.abandon()
            subject = Subject(model_name)
    subject.run.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
