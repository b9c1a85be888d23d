"""torchft: each rank is a replica group of one; rank 0 keeps the lighthouse."""

import os
from datetime import timedelta

import torch.distributed as dist
from jobs import Job
from session import Trainer, own_address, run, sgd
from torch import nn
from torch.optim import SGD
from torchft import DistributedDataParallel, Manager, Optimizer as CommittingOptimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD

_LIGHTHOUSE_PORT = 29510
_TIMEOUT = timedelta(seconds=120)


def start(job: Job, module: nn.Module) -> Trainer:
    optimizer = sgd(job, module)
    size = dist.get_world_size()
    here, master = own_address(), os.environ["MASTER_ADDR"]
    lighthouse = LighthouseServer(f"{here}:{_LIGHTHOUSE_PORT}", size) if dist.get_rank() == 0 else None
    store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    dist.barrier()  # the lighthouse is there
    manager = Manager(
        pg=ProcessGroupGloo(timeout=_TIMEOUT),
        load_state_dict=module.load_state_dict,
        state_dict=module.state_dict,
        min_replica_size=size,
        use_async_quorum=job.arm == "ddp",  # DiLoCo refuses it; LocalSGD asks for a quorum and needs it at once
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=f"http://{master}:{_LIGHTHOUSE_PORT}",
        replica_id=f"replica{dist.get_rank()}",
        hostname=here,
        init_sync=False,  # all have made the same weights, and the first step need not heal
        timeout=_TIMEOUT,
        quorum_timeout=_TIMEOUT,
    )

    servers = [store]  # the others reach the store by its address alone, so it must be kept alive from here

    def close() -> None:
        manager.shutdown(wait=False)
        dist.barrier()
        servers.clear()
        if lighthouse is not None:
            lighthouse.shutdown()

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
