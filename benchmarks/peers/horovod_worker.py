"""Horovod: gradients averaged as they become ready, fused, by its own Gloo; rank 0 keeps the rendezvous."""

import ctypes
import os
import socket

import torch.distributed as dist
from jobs import Job
from session import Trainer, own_address, run, sgd
from torch import nn

_STORE_PORT = 29512
_CLONE_NEWUTS = 0x04000000  # of sched.h; os.unshare came with Python 3.12


def start(job: Job, module: nn.Module) -> Trainer:
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], _STORE_PORT, size, rank == 0)
    servers: list[object] = [store]
    if rank == 0:
        servers.append(_rendezvous(store, size))
    _name_this_host(own_address())
    # What its launcher would set; it reaches hosts by ssh, which emulated ones do not have.
    os.environ.update(
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=str(size),
        HOROVOD_LOCAL_RANK="0",
        HOROVOD_LOCAL_SIZE="1",
        HOROVOD_CROSS_RANK=str(rank),
        HOROVOD_CROSS_SIZE=str(size),
        HOROVOD_HOSTNAME=own_address(),
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE=os.environ["GLOO_SOCKET_IFNAME"],
        HOROVOD_GLOO_RENDEZVOUS_ADDR=os.environ["MASTER_ADDR"],
        HOROVOD_GLOO_RENDEZVOUS_PORT=store.get("port").decode(),
    )
    import horovod.torch as hvd  # reads the environment

    hvd.init()
    compression = hvd.Compression.fp16 if job.arm == "fp16" else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        sgd(job, module), named_parameters=module.named_parameters(), compression=compression
    )

    def close() -> None:
        hvd.shutdown()
        dist.barrier()
        servers.clear()

    return Trainer(model=module, optimizer=optimizer, close=close)


def _name_this_host(name: str) -> None:
    """Give this thread, and those that it starts, a host name of their own.

    Horovod forgets HOROVOD_GLOO_IFACE where it makes its process sets' groups, and takes the address that the host's
    name stands for: on emulated hosts, which share the machine's name, the loopback's. An address stands for itself.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "this host cannot have a name of its own; run as root, as emulation must.")
    socket.sethostname(name)


def _rendezvous(store: dist.TCPStore, size: int) -> object:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    network = os.environ["MASTER_ADDR"].rpartition(".")[0]
    hosts = parse_hosts(",".join(f"{network}.{k + 1}:1" for k in range(size)))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(hosts, size))
    store.set("port", str(port))
    return server


if __name__ == "__main__":
    run(start)
