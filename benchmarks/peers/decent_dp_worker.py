"""decent-dp: backward updates a bucket and sends it to one partner; what came is mixed in one step later."""

from decent_dp.ddp import DecentralizedDataParallel
from jobs import Job
from session import Trainer, run
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR


def start(job: Job, module: nn.Module) -> Trainer:
    model = DecentralizedDataParallel(
        module,
        lambda named: SGD([p for _, p in named], lr=job.lr, momentum=0.9),
        lambda optimizer: LambdaLR(optimizer, job.lr_factor),
        topology=job.arm,
    )
    return Trainer(model=model, optimizer=None)


if __name__ == "__main__":
    run(start)
