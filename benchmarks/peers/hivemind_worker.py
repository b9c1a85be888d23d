"""hivemind: local updates, and parameters averaged whenever it estimates that all together have seen enough samples."""

import os

import hivemind
import torch.distributed as dist
from jobs import Job
from session import Trainer, own_address, run, sgd
from torch import nn

_STORE_PORT = 29511
_MATCHMAKING_S = 5.0  # its guide says 3 to 5 s "for small local runs"; a full group does not wait for it
_PROGRESS_S = 0.5  # how often each reads how far the others are: its least by default, where its most is 10 s
_AVERAGING_S = 20.0  # after which a rank that found no group trains on alone


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
        # With its default, averaging in the background, the next local step waits for it all the same, and meanwhile
        # each rank estimates by the clock that the others train on, so that periods of few steps follow.
        delay_state_averaging=False,
        tracker_opts={"max_refresh_period": _PROGRESS_S},
        matchmaking_time=_MATCHMAKING_S,
        averaging_timeout=_AVERAGING_S,
        averager_opts={"target_group_size": size},
    )

    def close() -> None:
        optimizer.shutdown()
        dist.barrier()  # who leaves first cuts the others' connections
        dht.shutdown()
        servers.clear()

    # Who starts first would train alone: its swarm of one ends its first period before others have seen a batch, and
    # they then drop their weights and download its weights and momentum.
    dist.barrier()
    optimizer.tracker.performance_ema.reset_timer()  # waiting was no training
    servers = [store]  # rank 0's end serves the others, so it must be kept alive from here
    return Trainer(model=module, optimizer=optimizer, close=close, free=True)


if __name__ == "__main__":
    run(start)
