"""The manager of torchft: each rank is a replica group of one; rank 0 keeps the lighthouse."""

import os
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from session import own_address
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

_LIGHTHOUSE_PORT = 29510
_TIMEOUT = timedelta(seconds=120)


def managed(module: nn.Module, *, use_async_quorum: bool) -> tuple[Manager, Callable[[], None]]:
    """Return a manager of all ranks of the default group, and what closes it. Collective, both."""
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
        use_async_quorum=use_async_quorum,
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

    return manager, close
