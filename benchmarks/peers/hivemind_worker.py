"""hivemind: local updates, and parameters averaged in the background whenever all have seen enough samples."""

import os

import hivemind
import torch.distributed as dist
from jobs import Job
from session import Trainer, own_address, run, sgd
from torch import nn

_STORE_PORT = 29511
_MATCHMAKING_S = 3.0  # its guide says 3 to 5 s "for small local runs"; a full group does not wait for it


def start(job: Job, module: nn.Module) -> Trainer:
    rank, size = dist.get_rank(), dist.get_world_size()
    where = [f"/ip4/{own_address()}/tcp/0"]
    store = dist.TCPStore(os.environ["MASTER_ADDR"], _STORE_PORT, size, rank == 0)
    if rank == 0:
        dht = hivemind.DHT(host_maddrs=where, start=True)
        store.set("peers", " ".join(str(address) for address in dht.get_visible_maddrs()))
    else:
        dht = hivemind.DHT(host_maddrs=where, initial_peers=store.get("peers").decode().split(), start=True)
    batch = job.batch if job.model == "cnn" else 1
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="peers",
        target_batch_size=batch * size * job.period,
        batch_size_per_step=batch,
        optimizer=sgd(job, module),
        use_local_updates=True,
        matchmaking_time=_MATCHMAKING_S,
        averaging_timeout=60.0,
        averager_opts={"target_group_size": size, "request_timeout": 1.0},  # it is to be below matchmaking_time
    )

    def close() -> None:
        optimizer.shutdown()
        dist.barrier()  # who leaves first cuts the others' connections
        dht.shutdown()
        servers.clear()

    servers = [store]  # rank 0's end serves the others, so it must be kept alive from here
    return Trainer(model=module, optimizer=optimizer, close=close)


if __name__ == "__main__":
    run(start)
