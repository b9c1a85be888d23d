"""Scripts that `pliant run` cannot help: their own exit status, one sentence, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from cli.inside import run as run_inside

pytestmark = pytest.mark.processes

TRAIN = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
def train(steps, num_models=1, after=lambda step: None):
    models = [DistributedDataParallel(torch.nn.Linear(4, 2)) for _ in range(num_models)]
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        sum(m(torch.ones(3, 4)).sum() for m in models).backward()
        optimizer.step()
        after(step)
"""


def run(code, tmp_path, *arguments):
    """Run a script under `pliant run`; return its exit status, what it said, and the verdict's JSON."""
    folder = tmp_path / "tmp"
    folder.mkdir(exist_ok=True)
    (tmp_path / "script.py").write_text(code)
    report = tmp_path / "verdict.json"
    words = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(
        [sys.executable, "-m", "pliant", "run", "--json", str(report), *arguments, "--", *words],
        env={**os.environ, "TMPDIR": str(folder), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
    )
    assert list(folder.glob("pliant-run-*")) == []
    return ended.returncode, ended.stdout, ended.stderr, json.loads(report.read_text()) if report.exists() else {}


@pytest.mark.parametrize(
    ("code", "status", "sentence"),
    [
        ("print('done')", 0, "No optimizer has stepped a model in DistributedDataParallel"),
        ("import sys; print('done'); sys.exit(7)", 7, "The script ended with exit status 7."),
        ("print('done'); raise ValueError('mine')", 1, "The script ended with exit status 1."),
        (
            "import os, signal; print('done', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "The script ended with exit status 137.",
        ),
    ],
)
def test_a_script_without_a_model_keeps_its_own_end(code, status, sentence, tmp_path):
    ended, out, err, verdict = run(code, tmp_path)
    assert (ended, out) == (status, "done\n")
    assert sentence in verdict["verdict"]
    assert f"Verdict: {verdict['verdict']}" in err
    assert verdict["plan"] is None
    assert verdict["speedup"] is None


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        pytest.param(
            "train(4, num_models=2)",
            "The script steps 2 wrapped models (Linear), and pliant run attaches itself to one",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            "DDP = DistributedDataParallel\n"
            "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
            "def DistributedDataParallel(m):\n    m = DDP(m)\n    m.register_comm_hook(None, fp16_compress_hook)\n"
            "    return m\ntrain(4)",
            "The model has a communication hook of the script, and Pliant needs that place",
            marks=pytest.mark.extended,
        ),
        pytest.param(
            "train(1)",
            "No optimizer has stepped a model in DistributedDataParallel, fully_shard or replicate twice",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_model_that_cannot_be_helped_trains_as_always(code, sentence, tmp_path):
    ended, out, _, verdict = run(f"{TRAIN}\n{code}\nprint('done')", tmp_path)
    assert (ended, out) == (0, "done\n")
    assert sentence in verdict["verdict"]


@pytest.mark.extended
def test_a_script_that_forks_is_left_alone_in_the_child(tmp_path):
    fork = """
def fork(step):
    if step != 2:
        return
    child = os.fork()
    if child == 0:
        own = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        for _ in range(5):
            own(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
train(5, after=fork)
print('done')
"""
    ended, out, _, verdict = run(TRAIN + fork, tmp_path)
    assert (ended, out) == (0, "done\n")
    assert "The model is trained by one rank, so nothing is exchanged; start more ranks." in verdict["verdict"]


@pytest.mark.extended  # the first tier has one that fails without a model
def test_a_script_that_fails_between_steps_keeps_its_error(tmp_path):
    ended, _, err, verdict = run(f"{TRAIN}\ntrain(4)\nraise KeyError('mine')", tmp_path)
    assert ended == 1
    assert "KeyError: 'mine'" in err
    assert verdict["verdict"].startswith("The script ended with exit status 1.")


def test_a_signal_reaches_the_script(tmp_path):
    code = "import time; print('there', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-m", "pliant", "run", "--", sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "The script ended with exit status 143." in err
    assert list(tmp_path.glob("pliant-run-*")) == []


@pytest.mark.parametrize(
    ("arguments", "command", "sentence"),
    [
        ((), ["no-such-program"], "the command 'no-such-program' cannot be run"),
        ((), ["/dev/null/train.py"], "the command '/dev/null/train.py' cannot be run: Not a directory"),
        (("--quality", "best"), ["true"], "--quality is 'best', but it can be exact, 1%, fast"),
        (("--emulate", "hosts=2,hosts=4"), ["true"], "--emulate has hosts=2 and hosts=4; use one of them"),
        (("--emulate", "hosts=two"), ["true"], "--emulate has hosts=two, but that must be a whole number"),
        (("--emulate", "world=lan,hosts=2"), ["true"], "world=lan and hosts=2, which both say what the hosts are like"),
        (("--emulate", "tcp_wmem=1KB"), ["true"], "a send buffer of 1000 bytes is below the 16384"),
        (("--emulate", "speed=2"), ["true"], "--emulate has 'speed', but it takes words such as hosts=4"),
        (("--out", "/dev/null/plan.json"), ["true"], "/dev/null/plan.json is to be written, but its folder does not"),
        ((), ["-c"], "the command after -- begins with '-c', which is an option"),
    ],
)
def test_a_wrong_word_is_said_before_anything_runs(arguments, command, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = run_inside("run", "--json", tmp_path / "verdict.json", *arguments, "--", *command)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sentence in " ".join(ended.stderr.split())
    assert list(tmp_path.iterdir()) == []
