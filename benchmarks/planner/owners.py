"""Steps of owners on four emulated hosts at 100 Mbit/s, beside an all-reduce and DDP: on one tensor, and on a VGG.

``python benchmarks/planner/owners.py --jsonl out.jsonl``           what has no line yet, and the table
``python benchmarks/planner/owners.py --jsonl out.jsonl --table``   the table alone

For each model four hosts are brought up, whose ranks build all arms and let them take turns, round by round: in even
rounds in their order, in odd ones from the last to the first. One line of JSON a turn; a round that is not complete is
made anew. Wanted is a step of at most 1.05 times that of `allreduce`. Needs root, for network namespaces.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.cli.emulate import topology_from_flags
from pliant.network import emulate_cluster
from pliant_bench.harness.emit import emit
from pliant_bench.harness.setup import MARK
from pliant_bench.harness.wire import busiest
from pliant_bench.models import Vgg

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import append_record, read_records

HOSTS, WANTED = 4, 1.05
ARMS = ("ddp", "allreduce", "sharded_optimizer", "sharded_optimizer(cut=whole)")
"""The last is what owners did before parameters were cut."""
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one tensor": (lambda: nn.Linear(1700, 1700, bias=False), (8, 1700)),
    "vgg": (Vgg, (2, 3, 32, 32)),
}
"""Name -> model, and shape of a batch: 2.9 M parameters, and 13 M, of which one matrix holds 8.4 M."""


class Arm:
    """A model that one arm trains for as long as the process lives."""

    def __init__(self, model: str, what: str) -> None:
        torch.manual_seed(0)
        make, shape = MODELS[model]
        self._ddp = DistributedDataParallel(make())
        self._optimizer = torch.optim.AdamW(self._ddp.parameters(), lr=1e-4)
        self._run = None if what == "ddp" else pliant.relax(self._ddp, self._optimizer, what, agreement_every=0)
        self._batch = torch.randn(shape, generator=torch.Generator().manual_seed(dist.get_rank()))

    def turn(self, num_steps: int) -> dict[str, Any]:
        """Make steps; return the seconds, and the bytes that Pliant has sent in a step, of the busiest rank."""
        dist.barrier()
        before, start_s = self._sent_bytes, time.perf_counter()
        for _ in range(num_steps):
            self._optimizer.zero_grad()
            self._ddp(self._batch).square().mean().backward()
            self._optimizer.step()
        took_s = (time.perf_counter() - start_s) / num_steps
        step_s, sent_bytes = busiest([took_s, (self._sent_bytes - before) / num_steps])
        return {"step_s": step_s, "sent_bytes": sent_bytes}

    @property
    def _sent_bytes(self) -> float:
        return 0.0 if self._run is None else self._run.stats()["sent_bytes"]

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


def play(model: str, rounds: list[int], num_steps: int) -> None:
    """Be one rank, with torchrun's environment: let all arms take turns in some rounds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    arms = {what: Arm(model, what) for what in ARMS}
    for arm in arms.values():
        arm.turn(2)  # in the first pass DDP's buckets are provisional
    for number in rounds:
        for what in list(arms) if number % 2 == 0 else list(arms)[::-1]:
            emit("turn", {"model": model, "round": number, "arm": what, **arms[what].turn(num_steps)})
    for arm in arms.values():
        arm.close()
    dist.barrier()
    dist.destroy_process_group()


def measure(path: Path, models: list[str], num_rounds: int, num_steps: int, rate: str) -> None:
    """Make the rounds that have no line for some arm, and write a line a turn."""
    for model in models:
        done = {(turn["round"], turn["arm"]) for turn in turns(path) if turn["model"] == model}
        left = [str(k) for k in range(num_rounds) if any((k, what) not in done for what in ARMS)]
        if not left:
            continue

        def keep(rank: int, line: str) -> None:
            if rank == 0 and line.startswith(MARK):
                said = json.loads(line.removeprefix(MARK))
                append_record(path, {**said, "rate": rate, "hosts": HOSTS, "steps": num_steps})
            elif line.strip():
                print(f"[{rank}] {line}", file=sys.stderr)

        argv = [sys.executable, __file__, "--rank", model, ",".join(left), str(num_steps)]
        with emulate_cluster(topology_from_flags(HOSTS, rate, "0ms", [], 1, 0.0)) as cluster:
            codes = [result.exit_code for result in cluster.run(argv, on_line=keep)]
        if any(codes):
            sys.exit(f"ranks ended with {codes}; what they said is above.")


def turns(path: Path) -> list[dict[str, Any]]:
    """Return all turns; of a round that was made anew the last."""
    lines = read_records(path) if path.exists() else []
    return list({(turn["model"], turn["round"], turn["arm"]): turn for turn in lines}.values())


def table(path: Path) -> str:
    """Return medians over rounds, and ratios to `allreduce`, formed round by round, as Markdown."""
    found = {(turn["model"], turn["round"], turn["arm"]): turn for turn in turns(path)}
    lines = ["| model | arm | step | over `allreduce` (rounds) | MB sent, busiest rank |", "|---|---|--:|---|--:|"]
    for model, what in dict.fromkeys((model, what) for model, _, what in found):
        mine = {k: turn for (m, k, w), turn in found.items() if (m, w) == (model, what)}
        pairs = [(t, found.get((model, k, "allreduce"))) for k, t in sorted(mine.items())]
        ratios = [t["step_s"] / exact["step_s"] for t, exact in pairs if exact is not None]
        step_s = statistics.median(turn["step_s"] for turn in mine.values())
        sent = statistics.median(turn["sent_bytes"] for turn in mine.values()) / 1e6
        told = f"{statistics.median(ratios or [0]):.3f} ({' '.join(f'{ratio:.2f}' for ratio in ratios)})"
        lines.append(f"| {model} | `{what}` | {step_s:.3f} s | {told} | {sent:.2f} |")
    return "\n".join([*lines, "", f"Wanted of `sharded_optimizer`: at most {WANTED}."])


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        model, rounds, num_steps = sys.argv[2:]
        play(model, [int(k) for k in rounds.split(",")], int(num_steps))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--table", action="store_true", help="the table alone")
    given = parser.parse_args()
    if not given.table:
        measure(given.jsonl, given.models, given.rounds, given.steps, given.rate)
    print(table(given.jsonl))


if __name__ == "__main__":
    main()
