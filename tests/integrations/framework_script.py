"""Scripts for two processes: a model, a framework's block of docs/frameworks.md, and what must be true of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.network.store_host import reserve_port

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
PLANS = {
    "onebit": "pliant.onebit()",
    "powersgd": "pliant.powersgd(rank=2)",
    "diloco": "pliant.diloco(3)",
    "streaming_diloco": "pliant.streaming_diloco(period=4, fragments=2, delay_steps=1)",
}
"""Name -> plan of each kind that must go on to the bit."""
SAMPLED = pytest.mark.parametrize(
    "plans",
    [
        pytest.param({name: PLANS[name] for name in ("streaming_diloco", "onebit")}, id="few"),
        pytest.param(PLANS, id="all", marks=pytest.mark.extended),
    ],
)
"""One that exchanges weights and one that exchanges gradients, under which a process is killed at last, and all of them
in the second tier."""

BEGIN = '''
import json, os, signal, sys, warnings
warnings.simplefilter("ignore")
os.environ.update(LOCAL_RANK=os.environ["RANK"], LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"], HF_HUB_OFFLINE="1")
os.environ.update(GROUP_RANK="0", TORCHELASTIC_RUN_ID="here", ACCELERATE_USE_CPU="true")
import torch, torch.distributed as dist
torch.set_num_threads(1)
RANK, FOLDER, PHASE = int(os.environ["RANK"]), os.environ["FOLDER"], {phase!r}
BLOCK, PLANS, SAVE_AT, STEPS = {block!r}, {plans!r}, 4, 8


class Net(torch.nn.Module):
    """Enough for low rank, residuals and dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(RANK)
        self.first, self.drop = torch.nn.Linear(30, 50), torch.nn.Dropout(0.2)
        self.norm, self.second = torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 4)

    def forward(self, x, y):
        z = self.second(self.drop(self.norm(torch.tanh(self.first(x)))))
        return {{"loss": torch.nn.functional.mse_loss(z, y), "logits": z}}


def data(size, seed=7):
    g = torch.Generator().manual_seed(seed)
    return [{{"x": torch.randn(30, generator=g), "y": torch.randn(4, generator=g)}} for _ in range(size)]


def flat(module, buffers=False):
    values = module.state_dict().values() if buffers else module.parameters()
    return torch.cat([value.detach().double().flatten() for value in values])


def of_all(mine):
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return both


def keep(name, value):
    torch.save(value, f"{{FOLDER}}/{{name}}.{{RANK}}")


def same(name, value):
    assert torch.equal(torch.load(f"{{FOLDER}}/{{name}}.{{RANK}}"), value), f"{{name}} went on otherwise"


def die():
    """End the process, once all have come to here: else the others would see in an exchange that one is gone."""
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def batches_of(resumes, dies, per_step=1):
    """This rank's batches, from where it resumes on; when one is taken that no process is to live for, all end."""
    given = data(2 * per_step * STEPS, seed=RANK)
    for k in range(per_step * SAVE_AT if resumes else 0, per_step * STEPS):
        if dies and k > per_step * (SAVE_AT + 1):
            die()
        yield {{key: torch.stack([given[2 * k][key], given[2 * k + 1][key]]) for key in "xy"}}


def run_block(given, options=""):
    """Run the framework's block with a plan and what else it is given; return what it leaves."""
    block = BLOCK.replace('"onebit"', "plan").replace("plan)", f"plan{{options}})")
    exec(block, given)
    assert torch.equal(*of_all(flat(given["module"]))), "ranks differ at the end"
    return given


def train_all(train, checkpoint="{{folder}}"):
    """Train under each plan, or go on from its checkpoint, and at last be killed, or go on from before that."""
    plans = {{name: eval(plan, {{"pliant": __import__("pliant")}}) for name, plan in PLANS.items()}}
    at = lambda name: checkpoint.format(folder=f"{{FOLDER}}/{{name}}")
    for name, plan in plans.items():
        if PHASE == "first":
            keep(name, train(name, plan, None))
        else:
            same(name, train(name, plan, at(name)))
    if PHASE == "first":
        train(name, plan, None, dies=True)
    else:
        same(name, train(name, plan, at(f"{{name}}-killed")))

'''


def block_of(title: str) -> str:
    """Return the code of a framework's block."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"```py\n(.*?)```", section, re.DOTALL)[0]


LAUNCH = """
import os, sys
{imports}
from pathlib import Path
folder, texts, ports = Path({folder!r}), {texts!r}, {ports!r}
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
os.environ.update(FOLDER=str(folder), PYTHONUNBUFFERED="1")


def rank_of(rank, text, port, phase):
    os.environ.update(RANK=str(rank), MASTER_PORT=str(port))
    log = os.open(folder / f"{{phase}}{{rank}}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    exec(compile(text, "script.py", "exec"), {{"__name__": "__main__"}})


for phase, (text, port) in enumerate(zip(texts, ports)):
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            try:
                rank_of(rank, text, port, phase)
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
                code = 1
            sys.stderr.flush(), os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print("codes", *codes, flush=True)
"""


def trains(title: str, body: str, plans: dict[str, str], folder: Path, *, imports: str, **settings: object) -> None:
    """Train from the beginning, are killed while they train on, and go on in new processes from the checkpoint.

    `body` sees PHASE "first" and then "resumed"; in the first the last thing that it does is to kill its process. A
    process that has imported the framework forks into the ranks, since that takes most of the time.
    """
    texts = []
    for phase in ("first", "resumed"):
        text = BEGIN.format(phase=phase, block=block_of(title), plans=plans) + body
        for name, value in settings.items():
            text = text.replace(f"<{name}>", repr(value))
        texts.append(text)
    held = [reserve_port() for _ in texts]
    ports = [port.getsockname()[1] for port in held]
    script = folder / "launch.py"
    script.write_text(LAUNCH.format(imports=imports, folder=str(folder), texts=texts, ports=ports))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500, check=False)
    for port in held:
        port.close()
    logs = "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(folder.glob("*.log")))
    assert re.findall(r"codes (.*)", done.stdout) == ["-9 -9", "0 0"], done.stdout + done.stderr + logs
