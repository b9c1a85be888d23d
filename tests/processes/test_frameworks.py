"""What Accelerate and Lightning Fabric hand to a training loop, from these libraries themselves, in a real world."""

from importlib.util import find_spec

import pytest

from processes.ranks import said, start

pytestmark = [pytest.mark.processes, pytest.mark.extended]

STEPS = 4

BEGIN = """
import os, warnings, torch, torch.distributed as dist, pliant
warnings.filterwarnings("ignore")
torch.set_num_threads(1)
os.environ.update(LOCAL_RANK=os.environ["RANK"], LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"], TORCHELASTIC_RUN_ID="here")
os.environ["GROUP_RANK"], rank = "0", int(os.environ["RANK"])
PLANS = {{
    "allreduce": pliant.allreduce(), "onebit": pliant.onebit(), "powersgd": pliant.powersgd(), "owner":
    pliant.sharded_optimizer(), "late": pliant.delayed(pliant.allreduce()), "diloco": pliant.diloco(2), "gossip":
    pliant.gossip(), "stale": pliant.bounded_staleness(),
}}


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss_of(model, step):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * rank + step))
    return model(x).square().mean()


def check(name, run, parameters, exchanges):
    stats = run.stats()
    assert stats["steps"] == {steps}, (name, stats)
    assert stats["exchanges"] == exchanges, (name, stats)
    mine = torch.cat([p.detach().flatten() for p in parameters])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    assert torch.equal(*both), name
"""

ACCELERATE = (
    BEGIN
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, dynamo_backend="{dynamo}", gradient_accumulation_steps={accumulated})
for name, plan in PLANS.items():
    module = net()
    model, optimizer = accelerator.prepare(module, torch.optim.AdamW(module.parameters(), lr=0.01))
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 2))
    with pliant.relax(model, optimizer, plan, timeout_s=30) as run:
        for step in range({accumulated} * {steps}):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, step))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    check(name, run, module.parameters(), {steps})
    accelerator.free_memory()
print("done")
"""
)

FABRIC = (
    BEGIN
    + """
from lightning_fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
for name, plan in PLANS.items():
    module = net()
    given = torch.compile(module, backend="eager") if {compiled} else module
    model, optimizer = fabric.setup(given, torch.optim.AdamW(module.parameters(), lr=0.01))
    with pliant.relax(model, optimizer, plan, timeout_s=30) as run:
        for step in range({accumulated} * {steps}):
            last = (step + 1) % {accumulated} == 0
            with fabric.no_backward_sync(model, enabled=not last):
                fabric.backward(loss_of(model, step))
            if last:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
    check(name, run, module.parameters(), {steps})
print("done")
"""
)


def trains(script: str, folder) -> None:
    ranks = start(script, 2, folder)
    for process in ranks:
        process.wait(300)
    texts = [said(folder, rank) for rank in range(2)]
    assert [process.returncode for process in ranks] == [0, 0], texts
    assert all("done" in text for text in texts), texts


@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate: pip install accelerate")
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("dynamo", ["no", "eager"])
def test_what_accelerate_prepares_is_relaxed(dynamo, accumulated, tmp_path):
    trains(ACCELERATE.format(dynamo=dynamo, accumulated=accumulated, steps=STEPS), tmp_path)


@pytest.mark.skipif(find_spec("lightning_fabric") is None, reason="needs Fabric: pip install lightning-fabric")
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_fabric_sets_up_is_relaxed(compiled, accumulated, tmp_path):
    trains(FABRIC.format(compiled=compiled, accumulated=accumulated, steps=STEPS), tmp_path)
