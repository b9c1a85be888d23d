"""Two hosts of two ranks: groups of some ranks are made again and again, and not all ranks are in as many of them."""

import pytest

from processes.ranks import fork, said

pytestmark = pytest.mark.processes

_SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import pliant

os.environ |= {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(int(os.environ["RANK"]) % 2),
               "GROUP_RANK": str(int(os.environ["RANK"]) // 2)}
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plans = [pliant.between_hosts(a) for a in (pliant.bytegrad(), pliant.local_sgd(2), pliant.bytegrad(), pliant.gossip())]
for _ in range(2):  # a second run makes groups of the same ranks once more
    with pliant.relax(model, optimizer, "bf16", timeout_s=20) as run:
        for plan in plans:
            run.switch(plan)
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 8) * (1 + dist.get_rank())).square().mean().backward()
                optimizer.step()
        weights = torch.cat([w.flatten() for w in run.consolidate().values()])
print("sum", float(weights.sum()), flush=True)
"""


def test_groups_of_some_ranks_are_made_again_and_again(tmp_path):
    ranks = fork(_SCRIPT, 4, tmp_path)
    for rank in ranks:
        rank.wait(timeout=250)
    assert [rank.returncode for rank in ranks] == [0] * 4, [said(tmp_path, r)[-600:] for r in range(4)]
    sums = {said(tmp_path, r).rpartition("sum ")[2] for r in range(4)}
    assert len(sums) == 1
