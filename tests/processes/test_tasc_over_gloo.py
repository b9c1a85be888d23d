"""Blocks between real processes: every agreement in turn, on one model."""

import pytest

from processes.ranks import fork, said

pytestmark = pytest.mark.processes

_SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import pliant

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plans = [pliant.tasc(0.05, power=0, agreement=agreement) for agreement in ("global", "leader", "local")]
with pliant.relax(model, optimizer, plans[0], agreement_every=1, timeout_s=20) as run:
    for plan in plans:
        run.switch(plan)
        for step in range(6):
            x = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
print("sum", float(sum(p.double().sum() for p in model.parameters())), flush=True)
"""


def test_blocks_between_processes(tmp_path):
    ranks = fork(_SCRIPT, 3, tmp_path)
    for rank in ranks:
        rank.wait(timeout=250)
    assert [rank.returncode for rank in ranks] == [0] * 3, [said(tmp_path, r)[-600:] for r in range(3)]
    assert len({said(tmp_path, r).rpartition("sum ")[2] for r in range(3)}) == 1
