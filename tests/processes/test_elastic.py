"""Processes of an elastic run: one is killed, the others go on; it is started again, and joins."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from torch.distributed import TCPStore

from processes.ranks import said

pytestmark = pytest.mark.processes

SCRIPT = """
import logging, sys, torch, pliant
logging.basicConfig(level=logging.INFO, format="%(message)s")
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
elastic = pliant.Elastic(regroup_s=20)
with pliant.relax(model, optimizer, {what!r}, timeout_s=8, elastic=elastic) as run:
    rank = sys.argv[1]
    print("joined at", run.steps, flush=True)
    while run.steps < {until}:
        x = torch.randn(8, 40)
        optimizer.zero_grad()
        (model(x) - x[:, :4]).square().mean().backward()
        optimizer.step()
        if run.steps == 50:
            print("training", flush=True)
print("ended", float(sum(p.double().sum() for p in model.parameters())), flush=True)
"""


class Hosts:
    """A launcher that hosts the store, and starts ranks."""

    def __init__(self, script, size, folder, store=None):
        self.size, self.folder, self.hosted = size, folder, store is not None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1] if store is None else store.port
        (folder / "script.py").write_text(script)
        self.ranks = {}
        for rank in range(size):
            self.start(rank)

    def start(self, rank):
        env = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            # The ranks look for a store that is there, as torchrun's agent tells them to.
            **({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"} if self.hosted else {}),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with (self.folder / f"{rank}.log").open("a") as log:
            command = [sys.executable, str(self.folder / "script.py"), str(rank)]
            self.ranks[rank] = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)

    def wait_for(self, words, ranks, timeout_s=100, times=1):
        deadline_s = time.monotonic() + timeout_s
        while not all(said(self.folder, r).count(words) >= times for r in ranks):
            assert time.monotonic() < deadline_s, self.all_said()
            time.sleep(0.05)

    def all_said(self):
        return "\n".join(f"[{r}] {said(self.folder, r)[-3000:]}" for r in range(self.size))

    def end(self):
        for process in self.ranks.values():
            process.kill()
            process.wait()


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("what", ["gossip", "streaming_diloco"])
def test_one_of_four_is_killed_and_comes_back(tmp_path, store, what):
    hosts = Hosts(SCRIPT.format(what=what, until=10**9), 4, tmp_path, store)
    try:
        hosts.wait_for("training", range(4))
        hosts.ranks[0].send_signal(signal.SIGKILL)  # as good as any: it does not host the store
        hosts.ranks[0].wait()
        hosts.wait_for("lost rank 0; ranks 1, 2, 3 go on", [1, 2, 3])
        assert all(hosts.ranks[r].poll() is None for r in (1, 2, 3)), hosts.all_said()
        hosts.start(0)
        hosts.wait_for("ranks 1, 2, 3, 0 go on", range(4))
        joined = [int(at) for at in re.findall(r"joined at (\d+)", said(tmp_path, 0))]
        assert joined[0] == 0
        assert joined[1] >= 50
        hosts.ranks[2].send_signal(signal.SIGSTOP)  # a stopped process gives no sign of life either
        hosts.wait_for("lost rank 2", [1, 3])
        hosts.ranks[2].send_signal(signal.SIGCONT)  # nobody has told it; it comes back by itself, with its state
        hosts.wait_for("ranks 0, 1, 2, 3 go on after step", [2], times=2)
        assert all(process.poll() is None for process in hosts.ranks.values()), hosts.all_said()
    finally:
        hosts.end()


def test_survivors_finish_alike(tmp_path, store):
    hosts = Hosts(SCRIPT.format(what="local_sgd", until=3000), 3, tmp_path, store)
    try:
        hosts.wait_for("training", range(3))
        hosts.ranks[1].kill()
        codes = [hosts.ranks[r].wait(timeout=80) for r in (0, 2)]
        assert codes == [0, 0], hosts.all_said()
        ends = [re.search(r"ended (\S+)", said(tmp_path, r))[1] for r in (0, 2)]
        assert ends[0] == ends[1]
    finally:
        hosts.end()


def test_the_store_dies_with_the_rank_that_hosts_it_and_the_error_says_so(tmp_path):
    hosts = Hosts(SCRIPT.format(what="local_sgd", until=10**9), 3, tmp_path)
    try:
        hosts.wait_for("training", range(3))
        hosts.ranks[0].kill()
        for rank in (1, 2):
            assert hosts.ranks[rank].wait(timeout=60) != 0
            assert "Its host is lost: rank 0" in said(tmp_path, rank)
    finally:
        hosts.end()
