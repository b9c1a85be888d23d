"""Processes whose last words are a collective end well."""

import os
import subprocess
import sys

import pytest

from pliant.network.store_host import reserve_port

pytestmark = [pytest.mark.processes, pytest.mark.extended]

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import pliant
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with pliant.relax(model, optimizer, "allreduce"):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
sys.setswitchinterval(100)  # so that no other thread gets a turn by chance
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("attempt", range(5))
def test_a_collective_may_be_the_last_line(attempt):
    """Without a moment for torch's threads one such world in four ends by SIGABRT."""
    world = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with reserve_port() as held:
        world["MASTER_PORT"] = str(held.getsockname()[1])
        ranks = [
            subprocess.Popen([sys.executable, "-c", SCRIPT], env=os.environ | world | {"RANK": str(rank)})
            for rank in range(2)
        ]
        assert [rank.wait(100) for rank in ranks] == [0, 0]
