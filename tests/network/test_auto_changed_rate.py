"""The links become slower in mid-training, on emulated hosts: "auto" notices, measures them anew and chooses again.

How soon is held on made-up clocks by tests/autotune/test_monitor.py; what it gains is measured by
benchmarks/planner/changed_rate.py.
"""

import json
import sys
from pathlib import Path

import pytest

from pliant.network import emulate_cluster
from pliant.spec import Host, Topology

pytestmark = [pytest.mark.netns, pytest.mark.idle, pytest.mark.usefixtures("emulating")]

_SCRIPT = """
import json, statistics, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import pliant
from waiting import until

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
layers = torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
generator = torch.Generator().manual_seed(dist.get_rank())
losses = []
def rate():
    return min(host.send_bytes_per_s for host in run.tuner._measured.topology.hosts)

def step():
    optimizer.zero_grad()
    x = torch.randn(16, 300, generator=generator)
    loss = (model(x) - x).square().sum(1).mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))

def say(**what):
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)

with pliant.relax(model, optimizer, pliant.Auto(quality=1.0, max_trials=2, max_seconds=20, probe_s=1.0)) as run:
    while "auto is still" in run.tuner.explanation:
        step()
    for _ in range(20):
        step()
    before, rates = run.tuner.explanation, [rate()]
    say(change=True)
    if dist.get_rank() == 0:
        until(Path(sys.argv[1]).exists)
    dist.barrier()
    num_steps = 0
    while (run.tuner.explanation == before or "auto is still" in run.tuner.explanation) and num_steps < 400:
        step()
        num_steps += 1
    ends = [statistics.mean(losses[:10]), statistics.mean(losses[-10:])]
    say(chosen_again=run.tuner.explanation != before, rates=[*rates, rate()], losses=ends)
"""


@pytest.mark.extended
def test_a_rate_that_falls_is_measured_and_answered(tmp_path, monkeypatch):
    fast, slow = (
        Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=r, receive_bytes_per_s=r) for k in range(2)))
        for r in (2.5e7, 2.5e6)
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    (tmp_path / "script.py").write_text(_SCRIPT)
    flag, said = tmp_path / "changed", []
    with emulate_cluster(fast, check=False) as cluster:

        def take(rank: int, line: str) -> None:
            if not line.startswith("{"):
                print(f"[{rank}] {line}")
                return
            said.append(json.loads(line))
            if "change" in said[-1]:
                cluster.reshape(slow)
                flag.touch()

        argv = [sys.executable, str(tmp_path / "script.py"), str(flag)]
        results = cluster.run(argv, on_line=take, timeout_s=110)
    assert [result.exit_code for result in results] == [0, 0]
    end = said[-1]
    assert end["chosen_again"]
    assert end["rates"][-1] < 0.5 * end["rates"][0], "the links that it chose for are not those that were there"
    assert end["losses"][1] < 0.8 * end["losses"][0]
