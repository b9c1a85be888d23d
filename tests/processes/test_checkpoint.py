"""State through torch.distributed.checkpoint, in a real world."""

import pytest

from processes.ranks import said, start

pytestmark = pytest.mark.processes

SCRIPT = """
import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, pliant
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["FOLDER"] + "/checkpoint"


def build(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Tanh(), torch.nn.Linear(50, 4))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    return ddp, optimizer, pliant.relax(ddp, optimizer, pliant.{what}(), timeout_s=30)


def momenta(optimizer):
    # of this rank: where weights are exchanged, optimizers differ
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {{str(k): optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)) for k, p in enumerate(parameters)}}


def train(ddp, optimizer, steps):
    for step in steps:
        x = torch.randn(8, 30, generator=torch.Generator().manual_seed(100 * rank + step))
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()


ddp, optimizer, run = build(0)
train(ddp, optimizer, range(4))
own = {{"model": ddp.module.state_dict(), "run": run.state_dict(), f"optimizer{{rank}}": momenta(optimizer)}}
dcp.save(own, checkpoint_id=folder)
train(ddp, optimizer, range(4, 8))
run.close()

again, other, resumed = build(1)
state = {{"model": again.module.state_dict(), "run": resumed.state_dict(), f"optimizer{{rank}}": momenta(other)}}
dcp.load(state, checkpoint_id=folder)
again.module.load_state_dict(state["model"])
for group in other.param_groups:
    for p, momentum in zip(group["params"], state[f"optimizer{{rank}}"].values(), strict=True):
        other.state[p]["momentum_buffer"] = momentum
resumed.load_state_dict(state["run"])
train(again, other, range(4, 8))
resumed.close()
for a, b in zip(ddp.parameters(), again.parameters(), strict=True):
    assert torch.equal(a, b)
print("equal")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("what", ["onebit", "powersgd", "gossip", "dcd", "streaming_diloco"])
def test_resume_through_dcp_is_uninterrupted(tmp_path, what):
    ranks = start(SCRIPT.format(what=what), 2, tmp_path)
    codes = [process.wait(timeout=100) for process in ranks]
    assert codes == [0, 0], said(tmp_path, 0) + said(tmp_path, 1)
    assert all("equal" in said(tmp_path, r) for r in range(2))
