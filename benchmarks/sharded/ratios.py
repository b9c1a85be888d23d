"""Steps of sharded models to 85 % of Fashion-MNIST over those of 16 bits, with SGD: for `planner.quality`.

``nice python benchmarks/sharded/ratios.py --jsonl out.jsonl --md out.md``

Model, batches, rates and steps are those of ``pliant bench --train``: four ranks on loopback, 350 steps of 64 images a
rank, SGD with momentum 0.9, seeds 0, 1 and 2. All ranks judge every tenth step on 2,500 test images; where the curve
crosses 85 % between two of them, a straight line is drawn. One line a trial.
"""

import argparse
import contextlib
import itertools
import json
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from journal import Lines, place, run_ranks, show
from settings import RATIOS
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import pliant
from pliant_bench.data.fetch import find_images
from pliant_bench.data.images import Images, load_images
from pliant_bench.harness.emit import emit
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.tasks import evaluate

RANKS, STEPS, BATCH, SEEDS, EVERY, TARGET = 4, 350, 64, (0, 1, 2), 10, 0.85
PLAIN, ROUNDED = RATIOS[0].name, RATIOS[2].name


def trained(task: Images, what: str, seed: int) -> dict[str, Any]:
    """Train once; return the steps to the target, and the accuracy at the end. Collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = task.model()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=0.9)
    run = None if what == PLAIN else pliant.relax(model, optimizer, what, timeout_s=600)
    curve = [(0, 0.0)]
    with contextlib.nullcontext() if run is None else run:
        for step in range(STEPS):
            warm = STEPS // 10
            for group in optimizer.param_groups:
                group["lr"] = task.lr * min((step + 1) / warm, (STEPS - step) / (STEPS - warm))
            x, y = task.batch(step, rank, size, BATCH, seed)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % EVERY == 0:
                curve.append((step + 1, *evaluate(task, [model], task.probe)))
    pairs = itertools.pairwise(curve)
    crossed = (a + (TARGET - low) / (high - low) * (b - a) for (a, low), (b, high) in pairs if low < TARGET <= high)
    (accuracy,) = evaluate(task, [model], task.num_held_out)
    return {"steps_to_target": next(crossed, None), "accuracy": accuracy}


def be_a_rank(folder: str, trials: str) -> None:
    """Train one trial after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    task = load_images(Path(folder))
    for trial in json.loads(trials):
        emit("ratio", {**trial, **trained(task, trial["what"], trial["seed"])})
    dist.destroy_process_group()


def table(lines: Lines, command: str) -> str:
    """Return the results as Markdown."""
    records = list(lines.records.values())
    known = {(r["setting"], r["seed"]): r for r in records}
    commits = ", ".join(sorted({r["commit"] for r in records}))
    head = ["# Steps of sharded models to 85 %", "", f"`{command}`", ""]
    head += [f"{records[-1]['software']}; {records[-1]['cpu']}; commits {commits}; nothing was timed.", ""]
    head += ["| gradients / weights | steps to 85 %, by seed | over 16 bits, by seed | mean | accuracy |"]
    rows: list[str] = []
    for setting in RATIOS:
        seeds = [seed for seed in SEEDS if {(setting.name, seed), (ROUNDED, seed)} <= {*known}]
        mine = [(known[setting.name, seed], known[ROUNDED, seed]) for seed in seeds]
        if not mine:
            continue
        reached = all(each["steps_to_target"] for pair in mine for each in pair)
        over = [own["steps_to_target"] / base["steps_to_target"] for own, base in mine] if reached else []
        steps = " ".join(f"{own['steps_to_target']:.0f}" if own["steps_to_target"] else "-" for own, _ in mine)
        mean = f"{statistics.fmean(over):.3f}" if over else ""
        accuracy = statistics.fmean(own["accuracy"] for own, _ in mine)
        rows.append(f"| {setting.name} | {steps} | {' '.join(f'{x:.3f}' for x in over)} | {mean} | {accuracy:.2%} |")
    return "\n".join([*head, "|---|---|---|--:|--:|", *rows, ""])


def main() -> None:
    if sys.argv[1] == "--rank":
        be_a_rank(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jsonl", type=Path, required=True)
    parser.add_argument("--md", type=Path)
    parser.add_argument("--data", default="", help="a folder of images")
    given = parser.parse_args()
    lines = Lines(given.jsonl, ("setting", "seed"))
    wanted = [{"setting": s.name, "what": s.what, "seed": seed} for seed in SEEDS for s in RATIOS]
    left = [each for each in wanted if not lines.has(each["setting"], each["seed"])]

    def keep(said: dict[str, Any]) -> None:
        said.pop("kind")
        lines.add({**said, **place()})
        print(f"{said['setting']}, seed {said['seed']}: {said['steps_to_target']}", flush=True)

    if left:
        argv = ["--rank", str(find_images(given.data)), json.dumps(left)]
        run_ranks(LocalHosts(RANKS), "ratios.py", argv, keep)
    show(table(lines, shlex.join(["python", *sys.argv])), given.md)


if __name__ == "__main__":
    main()
