"""An elastic run under torchrun: one agent for all ends all; one agent per host ends its own, which comes back."""

import os
import re
import signal
import subprocess
import sys

import pytest

from pliant.network.store_host import reserve_port
from waiting import until

pytestmark = [pytest.mark.processes]

SCRIPT = """
import logging, os, sys, time, torch, pliant
from pathlib import Path
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
log = (folder / f"{rank}.log").open("a", buffering=1)
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=log)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with pliant.relax(model, optimizer, "local_sgd", timeout_s=100, elastic=pliant.Elastic()) as run:
    print(f"joined at {run.steps}, process {os.getpid()}", file=log)
    last = folder / "last"  # the number of the last step, written by the first rank that has come back
    while not last.exists() or run.steps < int(last.read_text()):
        optimizer.zero_grad()
        run.model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        if run.steps == 20:
            print("training", file=log)
        if (folder / "back").exists() and rank == 1 and not last.exists():
            (folder / "new").write_text(str(run.steps + 50))
            (folder / "new").rename(last)
        time.sleep(0.02)  # the others need the processor, as long as they begin
print("ended", float(model.weight.detach().double().sum()), file=log)
"""


class Agents:
    """Agents of torchrun on loopback."""

    def __init__(self, folder, num, *options):
        self.folder, self._options = folder, options
        (folder / "script.py").write_text(SCRIPT)
        self.running = []
        for k in range(num):
            self.running.append(self.start(k))

    def start(self, k):
        options = [option.format(k=k) for option in self._options]
        script = [str(self.folder / "script.py"), str(self.folder)]
        with (self.folder / f"agent{k}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *options, "--max-restarts=0", *script],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def said(self, rank):
        log = self.folder / f"{rank}.log"
        return log.read_text() if log.exists() else ""

    def wait_for(self, condition):
        until(condition, lambda: "\n".join(log.read_text()[-1500:] for log in self.folder.glob("*.log")))

    def kill_rank(self, rank):
        self.wait_for(lambda: all("training" in self.said(r) for r in range(3)))
        os.kill(int(re.search(r"process (\d+)", self.said(rank))[1]), signal.SIGKILL)

    def end(self):
        for agent in self.running:
            agent.terminate()  # it ends its workers
        for agent in self.running:
            agent.wait()


@pytest.mark.extended
def test_one_agent_ends_the_siblings_of_a_lost_rank(tmp_path):
    agents = Agents(tmp_path, 1, "--standalone", "--nproc-per-node=3")
    try:
        agents.kill_rank(1)
        assert agents.running[0].wait(timeout=250) == 1
        assert not any("ended" in agents.said(r) for r in range(3))
    finally:
        agents.end()


@pytest.mark.extended
def test_with_an_agent_per_host_the_others_go_on_and_the_lost_host_comes_back(tmp_path):
    held = reserve_port()
    where = ["--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={held.getsockname()[1]}"]
    agents = Agents(tmp_path, 3, "--nnodes=3", "--nproc-per-node=1", "--node-rank={k}", *where)
    try:
        agents.kill_rank(1)
        assert agents.running[1].wait(timeout=250) == 1
        agents.wait_for(lambda: all("lost rank 1; ranks 0, 2 go on" in agents.said(r) for r in (0, 2)))
        assert agents.running[0].poll() is None
        agents.running[1] = agents.start(1)  # the same command
        agents.wait_for(lambda: agents.said(1).count("joined at") == 2)
        assert int(re.findall(r"joined at (\d+)", agents.said(1))[1]) >= 20
        (tmp_path / "back").touch()
        assert [agent.wait(timeout=250) for agent in agents.running] == [0, 0, 0]
        assert len({re.search(r"ended (\S+)", agents.said(r))[1] for r in range(3)}) == 1
    finally:
        agents.end()
        held.close()
