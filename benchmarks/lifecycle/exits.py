"""Exits without `close()`: each rank's exit status is what its script says, and no process is left.

    python benchmarks/lifecycle/exits.py list --trials benchmarks/lifecycle/exits_seed1.jsonl
    python benchmarks/lifecycle/exits.py run --trials benchmarks/lifecycle/exits_seed1.jsonl --results F.jsonl
    python benchmarks/lifecycle/exits.py table --results F.jsonl

A trial is a training on two processes of loopback, each an interpreter of its own, that ends one of the `WAYS` after a
few steps. F.jsonl gets one line a trial, and what has one is not run again.
"""

import argparse
import gc
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tasc.accuracy_book import Book, read_records, say_left

from pliant.engine.step_counts import has_free_pace
from pliant.network.namespaces import die_with_parent
from pliant.network.store_host import reserve_port
from pliant_bench.harness.names import LISTED_ARMS

RANKS, LAST = 2, 1
WITHIN_S = 90.0
"""After which a trial counts as one that hangs: its processes are killed."""
TIMEOUT_S = 10.0
"""Of an exchange."""

WAYS = {
    "end of script": [0, 0],
    "sys.exit(0)": [0, 0],
    "sys.exit(7)": [7, 7],
    "error": [1, 1],
    "error in a with block": [1, 1],
    "SIGINT": [-2, -2],
    "SIGINT in backward": [-2, -2],
    "sys.exit(7) after backward": [7, 7],
    "run deleted": [0, 0],
    "world destroyed first": [0, 0],
    "loader's processes live": [0, 0],
    "forked processes came and went": [0, 0],
    "two runs": [0, 0],
    "one rank leaves": [1, 3],
}
"""How a script ends -> the exit statuses of its ranks; that of a process which a signal ends is negative."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One exit."""

    seed: int
    number: int
    way: str
    algorithm: str
    steps: int
    """Made before it."""


class Lines(Book):
    """What has been run."""

    KEY = ("seed", "number")


def draw(seed: int, num: int) -> list[Trial]:
    """Return trials: ways and algorithms take turns in mixed orders, so that each comes about as often."""
    chance = random.Random(seed)
    ways, arms = sorted(WAYS), ["ddp", *LISTED_ARMS]
    chance.shuffle(ways)
    chance.shuffle(arms)
    turns = itertools.islice(zip(itertools.cycle(ways), itertools.cycle(arms), strict=False), num)
    return [
        Trial(seed=seed, number=k, way=way, algorithm=arm, steps=chance.randint(1, 12))
        for k, (way, arm) in enumerate(turns)
    ]


def carry_out(trial: Trial) -> dict[str, Any]:
    """Run one trial, and say how its processes ended."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="exits-") as folder, reserve_port() as held:
        port = held.getsockname()[1]
        ranks = [_start(trial, rank, port, Path(folder)) for rank in range(RANKS)]
        statuses: list[int | None] = [_wait(rank, began_s + WITHIN_S - time.monotonic()) for rank in ranks]
        said = [(Path(folder) / f"{rank}.log").read_text(errors="replace") for rank in range(RANKS)]
    passed = statuses == WAYS[trial.way] and not any("terminate called" in text for text in said)
    told = {"statuses": statuses, "expected": WAYS[trial.way], "passed": passed}
    return {**asdict(trial), **told, "trial_s": time.monotonic() - began_s, "said": [] if passed else said}


def _start(trial: Trial, rank: int, port: int, folder: Path) -> subprocess.Popen[bytes]:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS), "RANK": str(rank)}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    command = [sys.executable, __file__, "be", json.dumps(asdict(trial))]
    with (folder / f"{rank}.log").open("w") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(os.getpid()),
            start_new_session=True,
        )


def _wait(rank: subprocess.Popen[bytes], within_s: float) -> int | None:
    """Return the exit status, or None of a process that had to be killed, or has left others."""
    try:
        status = rank.wait(max(within_s, 0.0))
    except subprocess.TimeoutExpired:
        status = None
    try:
        os.killpg(rank.pid, signal.SIGKILL)  # nobody is there, if all is well
    except ProcessLookupError:
        return status
    rank.wait()
    return None


def be(trial: Trial) -> None:
    """Train as a rank, and end."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from pliant_bench.harness.arms import prepare

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hook: list[Callable[[], None]] = []

    class Calls(torch.autograd.Function):
        """Calls what is hooked in, in the midst of backward."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            del ctx
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            del ctx
            for each in hook:
                each()
            return grads[0]

    class Middle(nn.Module):
        """Where `Calls` stands in the model."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Calls.apply(x)  # pyright: ignore[reportReturnType]

    def new() -> Any:
        layers = nn.Linear(32, 64), Middle(), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 4)
        return prepare(trial.algorithm, nn.Sequential(*layers), 0.05, 100, 25.0, timeout_s=TIMEOUT_S)

    def backward(arm: Any) -> None:
        x = torch.randn(8, 32)
        arm.optimizer.zero_grad()
        nn.functional.cross_entropy(arm.model(x), x[:, :4].argmax(1)).backward()

    def train(arm: Any, steps: int) -> None:
        for _ in range(steps):
            backward(arm)
            arm.optimizer.step()

    arm = new()
    if trial.way == "error in a with block" and arm.run is not None:
        with arm.run:
            train(arm, trial.steps)
            raise ValueError("of the script")
    if trial.way == "loader's processes live":
        loader = iter(torch.utils.data.DataLoader(list(range(1000)), num_workers=2))  # pyright: ignore[reportArgumentType]
        next(loader)  # it lives until the script ends
    train(arm, trial.steps)
    if arm.run is not None and has_free_pace([rule.exchange for rule in arm.run.plan.rules]):
        dist.barrier()  # who leaves is lost to those that still train: here, all end together
    match trial.way:
        case "sys.exit(0)":
            sys.exit(0)
        case "sys.exit(7)":
            sys.exit(7)
        case "error" | "error in a with block":
            raise ValueError("of the script")
        case "SIGINT":
            signal.raise_signal(signal.SIGINT)
        case "SIGINT in backward":
            hook.append(lambda: signal.raise_signal(signal.SIGINT))
            backward(arm)
        case "sys.exit(7) after backward":
            backward(arm)
            sys.exit(7)
        case "run deleted":
            arm.run = None
            gc.collect()
        case "world destroyed first":
            dist.destroy_process_group()
        case "forked processes came and went":
            for _ in range(3):
                child = multiprocessing.get_context("fork").Process(target=int)
                child.start()
                train(arm, 1)
                child.join()
        case "two runs":
            other = new()
            for _ in range(3):
                train(arm, 1)
                train(other, 1)
        case "one rank leaves":
            if rank == LAST:
                sys.exit(3)
            train(arm, 10**9)
        case _:
            pass


def table(records: list[dict[str, Any]]) -> str:
    """Return a table of ways, and a line for each trial that did not pass."""
    rows = ["| way | exits | with the right statuses | longest, s |", "|---|---|---|---|"]
    for way in WAYS:
        mine = [record for record in records if record["way"] == way]
        longest_s = max((record["trial_s"] for record in mine), default=0.0)
        rows.append(f"| {way} | {len(mine)} | {sum(record['passed'] for record in mine)} | {longest_s:.0f} |")
    rows.append(f"| all | {len(records)} | {sum(record['passed'] for record in records)} | |")
    for r in records:
        if not r["passed"]:
            rows.append(f"\n{r['number']} {r['algorithm']}, {r['way']}: {r['statuses']} instead of {r['expected']}")
    return "\n".join(rows)


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("act", choices=["list", "run", "table", "be"])
    parser.add_argument("trial", nargs="?", help="of `be`: what a rank is told")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--trials", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--list", action="store_true", help="with run: say what is left, and carry out none")
    given = parser.parse_args()
    if given.act == "be":
        be(Trial(**json.loads(given.trial)))
    elif given.act == "list":
        given.trials.write_text("".join(json.dumps(asdict(each)) + "\n" for each in draw(given.seed, given.num)))
    else:
        journal = Lines(given.results)
        asked = [Trial(**each) for each in read_records(given.trials)] if given.act == "run" else []
        left = [trial for trial in asked if (trial.seed, trial.number) not in journal.records]
        if given.list:
            say_left([f"{trial.number} {trial.way}, {trial.algorithm}" for trial in left], len(asked))
            return
        for trial in left:
            record = journal.add(carry_out(trial))
            told = "passed" if record["passed"] else f"{record['statuses']}, not {record['expected']}"
            print(f"{trial.number} {trial.way}, {trial.algorithm}: {told}", flush=True)
        print(table(list(journal.records.values())))


if __name__ == "__main__":
    main()
