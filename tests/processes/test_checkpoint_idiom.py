"""The checkpoint idiom of torch's own manual, in a real world."""

import pytest

from processes.ranks import fork, said

pytestmark = pytest.mark.processes

SCRIPT = """
import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, pliant
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["FOLDER"] + "/checkpoint"


def build(seed):
    torch.manual_seed(10 * seed + rank)
    parts = torch.nn.Linear(30, 50), torch.nn.BatchNorm1d(50), torch.nn.Dropout(0.4), torch.nn.Linear(50, 4)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts), bucket_cap_mb=0.004)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    return ddp, optimizer, pliant.relax(ddp, optimizer, pliant.{what}(), timeout_s=30)


def train(ddp, optimizer, steps):
    for step in steps:
        x = torch.randn(8, 30, generator=torch.Generator().manual_seed(100 * rank + step))
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()


def whole(ddp, optimizer, run):
    model, gathered = get_state_dict(ddp, optimizer)
    return {{"model": model, "optimizer": gathered, "run": run.state_dict()}}


ddp, optimizer, run = build(0)
train(ddp, optimizer, range(4))
dcp.save(whole(ddp, optimizer, run), checkpoint_id=folder)
train(ddp, optimizer, range(4, 8))
wanted = [t.clone() for t in ddp.module.state_dict().values()]
run.close()

again, other, resumed = build(1)
state = whole(again, other, resumed)
dcp.load(state, checkpoint_id=folder)
set_state_dict(again, other, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
resumed.load_state_dict(state["run"])
train(again, other, range(4, 8))
for a, b in zip(wanted, again.module.state_dict().values(), strict=True):
    assert torch.equal(a, b)
resumed.close()
print("equal")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "what",
    [
        "gossip",
        *(
            pytest.param(what, marks=pytest.mark.extended)
            for what in ("onebit", "sharded_optimizer", "streaming_diloco")
        ),
    ],
)
def test_resume_through_dcp_is_uninterrupted(tmp_path, what):
    """Also what ranks do not have in common: their optimizers, buffers, and the masks that dropout draws next."""
    ranks = fork(SCRIPT.format(what=what), 2, tmp_path)
    codes = [process.wait(timeout=250) for process in ranks]
    assert codes == [0, 0], said(tmp_path, 0) + said(tmp_path, 1)
    assert all("equal" in said(tmp_path, r) for r in range(2))
