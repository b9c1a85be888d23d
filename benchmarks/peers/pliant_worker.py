"""Pliant, doing what a peer does."""

from jobs import Job
from session import Trainer, run, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant

ALGORITHMS = {
    "allreduce": lambda job: pliant.allreduce(),
    "fp16": lambda job: pliant.fp16(),
    "local_sgd": lambda job: pliant.local_sgd(job.period),
    "post_local_sgd": lambda job: pliant.post_local_sgd(job.warm_up_steps, job.period),
    "powersgd": lambda job: pliant.powersgd(rank=1),
    "diloco": lambda job: pliant.diloco(job.period),
    "gossip": lambda job: pliant.gossip(pliant.Graph(kind="hypercube")),
}
_OF_GRADIENTS = ("allreduce", "fp16", "powersgd", "post_local_sgd")


def start(job: Job, module: nn.Module) -> Trainer:
    optimizer = sgd(job, module)
    model = DistributedDataParallel(module, gradient_as_bucket_view=True) if job.arm in _OF_GRADIENTS else module
    relaxed = pliant.relax(model, optimizer, ALGORITHMS[job.arm](job))
    return Trainer(model=relaxed.model, optimizer=optimizer, close=relaxed.close)


if __name__ == "__main__":
    run(start)
