"""Exchanges in pairs between processes: a stopped one costs the others nothing, and a killed one is named."""

import json
import signal

import pytest

from processes.ranks import await_all, fork, said
from waiting import until

pytestmark = pytest.mark.processes

SCRIPT = """
import json, os, pathlib, time, torch, torch.distributed as dist, pliant
from pliant.engine.pair_exchange import PairExchange
torch.set_num_threads(1)
dist.init_process_group("gloo")
folder, rank = pathlib.Path(os.environ["FOLDER"]), dist.get_rank()
model = torch.nn.Linear(200, 200)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with pliant.relax(model, optimizer, "gossip(free=1)", timeout_s={timeout_s}) as run:
    [pairs] = run._executor.of(PairExchange)
    while not (folder / "enough").exists():
        optimizer.zero_grad()
        run.model(torch.randn(8, 200)).square().mean().backward()
        optimizer.step()
        if run.steps == 5:
            print("training", flush=True)
        counts = dict(steps=run.steps, exchanges=[pairs.exchanges_with(peer) for peer in range(3)])
        (folder / f"{{rank}}.part").write_text(json.dumps(counts))
        (folder / f"{{rank}}.part").rename(folder / f"{{rank}}.json")
        time.sleep(0.002)
print("closed", float(model.weight.detach().sum()), flush=True)
"""


def counts(folder, rank):
    file = folder / f"{rank}.json"
    return json.loads(file.read_text()) if file.exists() else {"steps": 0, "exchanges": [0, 0, 0]}


def test_a_stopped_process_holds_up_nobody_and_comes_back(tmp_path):
    ranks = fork(SCRIPT.format(timeout_s=200), 3, tmp_path)
    try:
        await_all(ranks, tmp_path, "training")
        ranks[2].send_signal(signal.SIGSTOP)
        before = counts(tmp_path, 0)["exchanges"][1]
        until(lambda: counts(tmp_path, 0)["exchanges"][1] > before + 40, lambda: said(tmp_path, 0))
        apart = counts(tmp_path, 2)
        ranks[2].send_signal(signal.SIGCONT)
        until(lambda: counts(tmp_path, 2)["exchanges"][0] > apart["exchanges"][0] + 5, lambda: said(tmp_path, 2))
        (tmp_path / "enough").touch()
        assert [rank.wait(timeout=250) for rank in ranks] == [0, 0, 0]
        ends = {said(tmp_path, rank).split("closed ")[1].split()[0] for rank in range(3)}
        assert len(ends) == 1, ends
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_killed_process_is_named_by_all(tmp_path):
    ranks = fork(SCRIPT.format(timeout_s=200), 3, tmp_path)
    try:
        await_all(ranks, tmp_path, "training")
        ranks[1].kill()
        for rank in (0, 2):
            assert ranks[rank].wait(timeout=250) != 0
            assert "rank 1 no longer takes part in exchanges of weights in pairs" in said(tmp_path, rank)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
