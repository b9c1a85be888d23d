"""torchft: each rank is a replica group of one."""

from jobs import Job
from session import Trainer, run, sgd
from torch import nn
from torch.optim import SGD
from torchft import DistributedDataParallel, Optimizer as CommittingOptimizer
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft_manager import managed


def start(job: Job, module: nn.Module) -> Trainer:
    optimizer = sgd(job, module)
    # DiLoCo refuses a quorum beside the step; LocalSGD asks for one and needs it at once
    manager, close = managed(module, use_async_quorum=job.arm == "ddp")
    if job.arm == "ddp":
        model = DistributedDataParallel(manager, module)
        return Trainer(model=model, optimizer=CommittingOptimizer(manager, optimizer), close=close)
    if job.arm == "diloco":
        outer = SGD(module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        DiLoCo(manager, [module], optimizer, outer, sync_every=job.period).__enter__()
    else:
        LocalSGD(manager, module, optimizer, sync_every=job.period).__enter__()
    return Trainer(model=module, optimizer=optimizer, close=close)


if __name__ == "__main__":
    run(start)
