"""A language model trained over the internet: Muon and AdamW at each site, exchanges of 4 bits between the sites.

    pliant emulate --topology four-continents --scale 0.07 -- python examples/gpt_internet.py --save saved
    pliant emulate --topology four-continents --scale 0.07 --elastic --restart 3 -- \
python examples/gpt_internet.py --elastic
    pliant emulate --topology islands.json -- python examples/gpt_internet.py --optimizer AdamW --shards 2

The first command, given again, goes on from what is in the folder `saved`. In the second a lost site does not end the
others. In the third each site has two ranks, which divide the model between them. Text is the source of Python's
standard library, or the *.txt files of --text FOLDER. docs/over-the-internet.md has more.
"""

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW, Optimizer

import pliant
from pliant_bench.lab.decoder import SIZES
from pliant_bench.lab.language import first_rate, language_task
from pliant_bench.lab.optimizers import muon_and_adamw
from pliant_bench.lab.tasks import LabTask
from pliant_bench.lab.training import rate_factor

PLANS = {
    "Muon": "local_momentum(period={period}, delay_steps={delay_steps}, averaging=int4, of_momentum=bytegrad)",
    "AdamW": "streaming_diloco(period={period}, fragments=3, delay_steps={delay_steps}, total_steps={steps})",
}
"""Optimizer -> what sites exchange, which arrives some steps later: with Muon changes of weights in 4 bits, and the
momentum in 8; with AdamW changes of weights in thirds."""
PERIODS = {"Muon": 5, "AdamW": 30}
"""Optimizer -> steps from one exchange of the same weights to the next."""


class Rank(NamedTuple):
    """One process of the training; the group is torch's default group if None."""

    number: int
    size: int
    group: ProcessGroup | None = None


class Judge:
    """The curve of a training: perplexity of the mean of all ranks' weights, while a clock stands still.

    Args:
        task: Has the held-out text.
        every: Steps between two points, each a step before its end: there exchanges of such a period have arrived.

    """

    def __init__(self, task: LabTask, every: int) -> None:
        self._task, self._every, self._model = task, every, task.model()
        self._seconds = self._since_s = 0.0
        self.curve: list[tuple[int, float, float]] = []
        """Step, seconds of training until then, and perplexity."""

    def start(self) -> None:
        """Let the clock run."""
        self._since_s = time.perf_counter()

    def stop(self) -> float:
        """Stop the clock, and return the seconds of training until now."""
        self._seconds += time.perf_counter() - self._since_s
        return self._seconds

    def after_step(self, steps: int, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Add a point, if it is time for one; `weights` returns the mean over ranks. Collective."""
        if self._every and steps % self._every == self._every - 1:
            self.curve.append((steps, self.stop(), self.perplexity(weights())))
            self.start()

    def perplexity(self, weights: Mapping[str, Tensor]) -> float:
        """Return the perplexity on held-out text."""
        self._model.load_state_dict(weights)
        return math.exp(self._task.judge(self._model))


def divided(model: nn.Module, shards: int, rank: Rank) -> nn.Module:
    """Return the model with each block divided among so many neighbouring ranks, which are those of a site."""
    mesh = init_device_mesh("cpu", (rank.size // shards, shards), mesh_dim_names=("site", "shard"))
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimizers_of(name: str, model: nn.Module, rate: float) -> list[Optimizer]:
    """Return Muon for the matrices of blocks and AdamW for all else, or AdamW alone."""
    return muon_and_adamw(model, rate) if name == "Muon" else [AdamW(model.parameters(), lr=rate)]


def begun(model: nn.Module, optimizers: Sequence[Optimizer], options: argparse.Namespace, rank: Rank) -> pliant.Run:
    """Return the run: a new one, one that other ranks have begun, or one that was saved."""
    if options.elastic:
        elastic = pliant.Elastic(secret_file=os.environ.get("PLIANT_SECRET_FILE"), regroup_s=60)
        return pliant.relax(model, optimizers, options.plan, group=rank.group, elastic=elastic, timeout_s=30)
    if options.save and (Path(options.save) / "checkpoint.json").exists():
        return pliant.load_run(
            options.save, model, optimizers, group=rank.group, connections=connections_of(options.connections)
        )
    return pliant.relax(
        model, optimizers, options.plan, group=rank.group, connections=connections_of(options.connections)
    )


def connections_of(given: str) -> int | str:
    """Return what `relax` takes: a number, "auto", or the path of a topology."""
    return int(given) if given.isdecimal() else given


def digest_of(model: nn.Module) -> str:
    """Return a hash of this rank's weights: two runs that it is equal of have the same weights to the bit."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        part = value.to_local() if hasattr(value, "to_local") else value
        found.update(part.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def make_step(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    task: LabTask,
    step: int,
    options: argparse.Namespace,
    rank: Rank,
) -> None:
    """Make one step, on windows that no other rank has; windows and rate depend on the number of the step alone."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate_factor(step, options.steps)
        optimizer.zero_grad()
    x, y = task.batch_of(step, rank.number, rank.size, options.seed)
    task.loss(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()


def task_of(options: argparse.Namespace, rank: Rank) -> LabTask:
    """Return model and text, after the seed was set, and settle the learning rate."""
    windows = options.windows * rank.size
    options.lr = options.lr or first_rate(options.size, windows)
    torch.manual_seed(options.seed)
    return language_task(options.size, windows, rank.size, options.steps, options.text)


def train(options: argparse.Namespace, rank: Rank) -> dict[str, Any]:
    """Train, and return what came of it on this rank."""
    task = task_of(options, rank)
    model, judge = task.model(), Judge(task, options.judge_every)
    if options.shards > 1:
        model = divided(model, options.shards, rank)
    optimizers = optimizers_of(options.optimizer, model, options.lr)
    if rank.number == 0 and not options.elastic:
        print("the sites connect" + (", and measure their links" if options.connections == "auto" else ""), flush=True)
    with begun(model, optimizers, options, rank) as run:
        judge.start()
        while run.steps < (options.stop or options.steps):
            make_step(run.model, optimizers, task, run.steps, options, rank)
            judge.after_step(run.steps, run.consolidate)
            if options.save and run.steps % options.save_every == 0:
                run.save(options.save)
            if rank.number == run.members[0] and run.steps % 10 == 0:
                print(f"step {run.steps}, {len(run.members)} ranks", flush=True)
        return {
            "steps": run.steps,
            "train_s": judge.stop(),
            "perplexity": judge.perplexity(run.consolidate()),
            "weights": digest_of(model),
            "sent_bytes": run.stats()["sent_bytes"],
            "curve": judge.curve,
            "first": rank.number == run.members[0],
        }


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line; all of them have defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="", help="an algorithm, or the path of a plan; by optimizer if empty")
    parser.add_argument("--period", type=int, default=0, help="steps between exchanges; 0: 5 with Muon, 30 with AdamW")
    parser.add_argument("--delay-steps", type=int, default=3, help="until an exchange arrives: its time over a step's")
    parser.add_argument("--optimizer", default="Muon", choices=["Muon", "AdamW"], help="Muon is Muon and AdamW")
    parser.add_argument("--size", default="0.4M", choices=list(SIZES), help="parameters")
    parser.add_argument("--windows", type=int, default=8, help="of 64 characters, in a step of one rank")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--stop", type=int, default=0, help="end after this step, as if interrupted; 0: at the end")
    parser.add_argument("--lr", type=float, default=0.0, help="largest learning rate; 0: by size and batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", default="", help="folder of *.txt files; Python's library if empty")
    parser.add_argument("--connections", default="auto", help='number between two ranks, "auto", or a topology')
    parser.add_argument("--shards", type=int, default=1, help="ranks of a site, among which the model is divided")
    parser.add_argument("--save", default="", help="folder of the checkpoint, which all ranks see")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--judge-every", type=int, default=0, help="steps between two perplexities; 0: at the end")
    parser.add_argument("--elastic", action="store_true", help="go on when a rank is lost, and take it back")
    parser.add_argument("--json", default="", help="where the first rank writes its result")
    options = parser.parse_args(argv)
    options.period = options.period or PERIODS[options.optimizer]
    options.plan = options.plan or PLANS[options.optimizer].format(**vars(options))
    if options.elastic and (options.save or options.shards > 1):
        parser.error("an elastic run brings lost ranks back itself, with whole models; leave out --save and --shards.")
    return options


def main() -> None:
    """Train as one process of torchrun or `pliant emulate`, and say what came of it."""
    options = parsed()
    torch.set_num_threads(1)
    if not options.elastic:  # there the run makes a group, and a new one when a rank is lost
        dist.init_process_group("gloo")
    result = train(options, Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
    if result.pop("first"):
        print(json.dumps({**result, "curve": len(result["curve"])}), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(result))
    if not options.elastic:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
