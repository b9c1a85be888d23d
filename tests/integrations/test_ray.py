"""Ray Train, as it is: two workers, of which one is lost."""

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import pytest

from integrations.framework_script import PLANS, block_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.extended,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray Train: pip install 'ray[train]'"),
]

SCRIPT = """
import os, sys, tempfile
os.environ.update(RAY_USAGE_STATS_ENABLED="0", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", RAY_AUTH_MODE="disabled")
os.environ.update(RAY_raylet_start_wait_time_s="300", RAY_agent_register_timeout_ms="300000")  # on a busy machine
import ray, ray.train, torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

FOLDER, BLOCK, PLANS = <folder>, <block>, <plans>


def work(config):
    import os, signal, tempfile, warnings
    import pliant, ray.train, torch
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    for name, plan in config["plans"].items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.Dropout(0.2), torch.nn.Linear(50, 4))
        net = model

        class Loss(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x):
                return {"loss": self.net(x).square().mean()}

        model = Loss()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        g = torch.Generator().manual_seed(rank)

        class Batches(list):
            def __iter__(self):
                for k in range(len(self)):
                    if config["dies"] and len(self) - k == 2 and rank == 1 and not os.path.exists(config["mark"]):
                        open(config["mark"], "w").close()
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield self[k]

            def __getitem__(self, k):
                return Batches(super().__getitem__(k)) if isinstance(k, slice) else super().__getitem__(k)

        batches = Batches({"x": torch.randn(4, 30, generator=g)} for _ in range(8))
        save_every = 4
        exec(config["block"].replace('"onebit"', "plan"), {**globals(), **locals()})
        weights = torch.cat([p.detach().flatten() for p in net.parameters()])
        torch.save(weights, f"{config['folder']}/{rank}.pt")


def train(name, plan, dies):
    folder = f"{FOLDER}/{name}" + ("-killed" if dies else "")
    os.makedirs(folder)
    config = {"plans": {name: plan}, "dies": dies, "folder": folder, "mark": folder + "/killed", "block": BLOCK}
    result = TorchTrainer(
        work, train_loop_config=config, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder, name="run", failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert "pliant/step_s" in result.metrics and result.metrics["pliant/sent_bytes"] >= 0, result.metrics
    assert os.path.exists(folder + "/killed") == dies
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]


import pliant
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=<temp>)
for name, plan in PLANS.items():
    whole, resumed = (train(name, eval(plan), dies) for dies in (False, True))
    assert torch.equal(*whole), f"{name}: ranks differ at the end"
    assert all(map(torch.equal, whole, resumed)), f"{name} went on otherwise"
    print("went on:", name, flush=True)
ray.shutdown()
"""


@pytest.mark.parametrize("name", PLANS)
def test_a_worker_is_lost_and_the_others_go_on_with_it_to_the_bit(name, tmp_path):
    script, temp = tmp_path / "script.py", tempfile.mkdtemp(prefix="ray")  # paths of sockets must be short
    text = SCRIPT.replace("<folder>", repr(str(tmp_path))).replace("<block>", repr(block_of("Ray Train")))
    script.write_text(text.replace("<plans>", repr({name: PLANS[name]})).replace("<temp>", repr(temp)))
    try:
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=580, check=False)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    assert f"went on: {name}" in done.stdout, done.stdout[-3000:] + done.stderr[-6000:]
