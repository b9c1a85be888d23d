"""torch's own hooks, as `pliant bench` sets them up: on Gloo some want care (src/pliant/cli/bench/arms.py)."""

from jobs import Job
from session import Trainer, run
from torch import nn

from pliant_bench.harness.arms import prepare

_BUCKET_MB = 25.0  # DDP's own default


def start(job: Job, module: nn.Module) -> Trainer:
    # Post-local SGD averages gradients in a fifth of the steps that this is told: here, in those that are not timed.
    arm = prepare(job.arm, module, job.lr, 5 * job.warm_up_steps, _BUCKET_MB)
    return Trainer(model=arm.model, optimizer=arm.optimizer)


if __name__ == "__main__":
    run(start)
