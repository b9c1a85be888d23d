"""Processes of an elastic run: one is killed, the others go on; it is started again, and joins."""

import logging
import multiprocessing
import os
import re
import signal
import sys

import pytest
import torch
from torch.distributed import TCPStore

import pliant
from pliant.network.store_host import reserve_port
from waiting import until

pytestmark = [pytest.mark.processes]

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "torch.optim", "torch._dynamo", "pliant.engine.elastic"])


def be(rank, size, port, hosted, folder, what, until):
    """Be one rank; what it says goes to <folder>/<rank>.log."""
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
        # So the ranks look for a store that is there, as torchrun's agent tells them to.
        | ({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"} if hosted else {})
        | {"GLOO_SOCKET_IFNAME": "lo"}
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    elastic = pliant.Elastic(regroup_s=20)
    with pliant.relax(model, optimizer, what, timeout_s=8, elastic=elastic) as run:
        print("joined at", run.steps)
        while run.steps < until:
            x = torch.randn(8, 40)
            optimizer.zero_grad()
            (run.model(x) - x[:, :4]).square().mean().backward()
            optimizer.step()
            if run.steps == 50:
                print("training")
    print("ended", float(sum(p.double().sum() for p in model.parameters())))


class Hosts:
    """A launcher that hosts the store, unless rank 0 has to, and starts ranks."""

    def __init__(self, size, folder, what, until, store=None):
        self._held = reserve_port()
        port = self._held.getsockname()[1] if store is None else store.port
        self.size, self.folder = size, folder
        self._settings = (size, port, store is not None, folder, what, until)
        self.ranks = {}
        for rank in range(size):
            self.start(rank)

    def start(self, rank):
        self.ranks[rank] = processes.Process(target=be, args=(rank, *self._settings))
        self.ranks[rank].start()

    def kill(self, rank):
        self.ranks[rank].kill()
        self.ranks[rank].join()

    def said(self, rank):
        log = self.folder / f"{rank}.log"
        return log.read_text() if log.exists() else ""

    def wait_for(self, words, ranks, times=1):
        until(
            lambda: all(self.said(r).count(words) >= times for r in ranks),
            lambda: [self.said(r)[-2000:] for r in range(self.size)],
        )

    def ends(self, rank, timeout_s=80):
        self.ranks[rank].join(timeout_s)
        return self.ranks[rank].exitcode

    def end(self):
        for rank in self.ranks:
            self.kill(rank)
        self._held.close()


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.extended  # test_torchrun.py holds the same of agents
@pytest.mark.parametrize("what", ["gossip", "streaming_diloco"])
def test_one_of_four_is_killed_and_comes_back(tmp_path, store, what):
    hosts = Hosts(4, tmp_path, what, 10**9, store)
    try:
        hosts.wait_for("training", range(4))
        hosts.kill(0)  # as good as any: it does not host the store
        hosts.wait_for("ranks 1, 2, 3 go on", [1, 2, 3])
        hosts.start(0)
        hosts.wait_for("ranks 1, 2, 3, 0 go on", range(4))
        hosts.wait_for("joined", [0], times=2)
        first, again = (int(at) for at in re.findall(r"joined at (\d+)", hosts.said(0)))
        assert first == 0
        assert again >= 50
        os.kill(hosts.ranks[2].pid, signal.SIGSTOP)  # a stopped process gives no sign of life either
        hosts.wait_for("lost rank 2", [1, 3])
        os.kill(hosts.ranks[2].pid, signal.SIGCONT)  # nobody has told it; it comes back by itself, with its state
        hosts.wait_for("ranks 0, 1, 2, 3 go on after step", [2], times=2)
        assert all(process.exitcode is None for process in hosts.ranks.values())
    finally:
        hosts.end()


@pytest.mark.extended
def test_survivors_finish_alike(tmp_path, store):
    hosts = Hosts(3, tmp_path, "local_sgd", 1500, store)
    try:
        hosts.wait_for("training", range(3))
        hosts.kill(1)
        assert [hosts.ends(rank) for rank in (0, 2)] == [0, 0]
        ends = [re.search(r"ended (\S+)", hosts.said(rank))[1] for rank in (0, 2)]
        assert ends[0] == ends[1]
    finally:
        hosts.end()


def test_the_store_dies_with_the_rank_that_hosts_it_and_the_error_says_so(tmp_path):
    hosts = Hosts(3, tmp_path, "local_sgd", 10**9)
    try:
        hosts.wait_for("training", range(3))
        hosts.kill(0)
        for rank in (1, 2):
            assert hosts.ends(rank) == 1
            assert "Its host is lost: rank 0" in hosts.said(rank)
    finally:
        hosts.end()
