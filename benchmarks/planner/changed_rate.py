"""What "auto" gains when the links become slower in mid-training: on emulated hosts, against DDP's own exchange.

    python benchmarks/planner/changed_rate.py

Prints the steps until another plan was tried, the plans, and how many times faster the one that stayed is, in three
turns; and the loss at the beginning and at the end. tests/network/test_auto_changed_rate.py holds that it is answered.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from pliant.network import emulate_cluster
from pliant.spec import Host, Topology

_SCRIPT = """
import json, statistics, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import pliant
from pliant.planner import BASELINES

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
layers = torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []

def step():
    start_s = time.perf_counter()
    optimizer.zero_grad()
    x = torch.randn(16, 300, generator=generator)
    loss = (model(x) - x).square().sum(1).mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
    return time.perf_counter() - start_s

def say(**what):
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)

auto = pliant.Auto(quality=1.1, experience=None, max_trials=4, max_seconds=20, probe_s=2.0)
with pliant.relax(model, optimizer, auto) as run:
    while "auto is still" in run.tuner.explanation:
        step()
    for _ in range(40):
        step()
    before = run.plan.hash
    say(change=before)
    flag = Path(sys.argv[1])
    while dist.get_rank() == 0 and not flag.exists():
        time.sleep(0.05)
    dist.barrier()
    plans = []
    while len(plans) < 500 and (len(plans) < 60 or len(set(plans[-60:])) > 1):
        step()
        plans.append(run.plan)
    settled = plans[-1]
    run.tuner.close()
    run.tuner = None
    turns = {"exact": [], "chosen": []}
    for _ in range(3):
        for name, plan in (("exact", BASELINES["ddp"].plan()), ("chosen", settled)):
            run.switch(plan)
            step()
            turns[name].append(statistics.median(step() for _ in range(4)))
    ends = [statistics.mean(losses[:10]), statistics.mean(losses[-10:])]
    say(plans=[plan.hash for plan in plans], turns=turns, losses=ends)
"""


def main() -> None:
    fast, slow = (
        Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=r, receive_bytes_per_s=r) for k in range(2)))
        for r in (2.5e7, 1.25e6)
    )
    said = []
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(fast) as cluster:
        script, flag = Path(folder, "script.py"), Path(folder, "changed")
        script.write_text(_SCRIPT)

        def take(rank: int, line: str) -> None:
            if not line.startswith("{"):
                print(f"[{rank}] {line}")
                return
            said.append(json.loads(line))
            if "change" in said[-1]:
                cluster.reshape(slow)
                flag.touch()

        cluster.run([sys.executable, str(script), str(flag)], on_line=take, timeout_s=600)
    before, end = said[0]["change"], said[-1]
    print("steps until another plan was tried:", next(k for k, plan in enumerate(end["plans"]) if plan != before))
    print("steps until one stayed:", len(end["plans"]) - 60)
    gains = [a / b for a, b in zip(end["turns"]["exact"], end["turns"]["chosen"], strict=True)]
    print("times faster than exact:", statistics.median(gains), gains)
    print("loss:", *end["losses"])


if __name__ == "__main__":
    main()
