"""Forty small models under "auto": no exception, and as good as DDP in bfloat16.

``nice -n 19 python benchmarks/auto_models/job.py --out results.jsonl``           all 960 runs; goes on where it stopped
``python benchmarks/auto_models/job.py --out results.jsonl --only 'one logit*'``  some models
``python benchmarks/auto_models/job.py --out results.jsonl --table``              the table alone

Each model of `small_models.py` is trained with SGD (momentum 0.9) and AdamW, by DDP that exchanges bfloat16, and by
"auto" with quality 1, 1.1 and 1.5, which makes so many times DDP's steps; with the seeds 0, 1 and 2, whose weights and
batches are the same under all. Batches are counted from the end, so that losses of the same ones are compared. Two
ranks are threads, and every message takes as long as at 200 Mbit/s, so that there is something to gain. One line a run:
loss, which is the mean over all ranks and the last steps, as many as are a tenth of DDP's, the plan, what was tried,
what failed, and the error if there was one.

A model passes at a quality if its loss exceeds DDP's by no more than 0.5 %, or two standard errors of the paired
differences, whichever is larger.
"""

import argparse
import fnmatch
import importlib
import itertools
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from small_models import CASES, Case, batch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.comm import ProcessGroupComm, new_comm

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import append_record, read_records, say_left

STEPS, SEEDS, RANKS = 600, (0, 1, 2), 2
RATE_BYTES_PER_S = 25e6
ARMS = {"ddp": 1.0, "auto 1.0": 1.0, "auto 1.1": 1.1, "auto 1.5": 1.5}
OPTIMIZERS = ("SGD", "AdamW")
ALLOWED, ERRORS = 0.005, 2.0

_SEEDING = threading.Lock()


class SlowComm(ProcessGroupComm):
    """Over Gloo on loopback, and every message takes its time on a slow link before it leaves."""

    def exchange(self, sends, receives, *, turn=0, tag=0, patience_s=None):
        time.sleep(sum(x.nbytes for _, x in sends) / RATE_BYTES_PER_S)
        return super().exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)

    def split(self, groups, connections=0):
        mine = super().split(groups, connections)
        if mine is not None:
            mine.__class__ = SlowComm
        return mine

    def _start(self, op, x, call):
        time.sleep(x.nbytes / RATE_BYTES_PER_S)
        return super()._start(op, x, call)


def slow_group(group: Any, timeout_s: float, start_timeout_s: float | None = None, **kinds: Any) -> SlowComm:
    """Return what `new_comm` does, on a slow link."""
    made = new_comm(group, timeout_s, start_timeout_s, **kinds)
    made.__class__ = SlowComm
    return cast(SlowComm, made)


def trials() -> Iterator[tuple[Case, str, str, int]]:
    """Yield every run, those of one seed first."""
    for seed, case, optimizer, arm in itertools.product(SEEDS, CASES, OPTIMIZERS, ARMS):
        yield case, optimizer, arm, seed


def optimizers_of(model: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    """Return an optimizer, or two where AdamW does not take the gradients of some layers."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name == "SGD":
        return [torch.optim.SGD(parameters, lr=0.05, momentum=0.9)]
    sparse = [p for m in model.modules() if isinstance(m, nn.EmbeddingBag) and m.sparse for p in m.parameters()]
    held = {id(p) for p in sparse}
    dense = [p for p in parameters if id(p) not in held]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(dense, lr=0.002)]
    return [*made, torch.optim.SparseAdam(sparse, lr=0.002)] if sparse else made


def trained(place: Any, case: Case, optimizer: str, arm: str, seed: int, num_steps: int) -> dict[str, Any]:
    """Train one model on one rank; return its losses, and what "auto" did."""
    with _SEEDING:
        torch.manual_seed(seed)
        module = case.model()
    ddp = DistributedDataParallel(module, process_group=place.process_group, **case.ddp)
    optimizers = optimizers_of(ddp, optimizer)
    auto = pliant.Auto(quality=ARMS[arm], experience=None, max_trials=8, max_seconds=20, probe_s=0.2, seed=seed)
    what, held = "bf16" if arm == "ddp" else auto, optimizers if len(optimizers) > 1 else optimizers[0]
    run = pliant.relax(ddp, held, what, timeout_s=60)
    losses: list[float] = []
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: max(0.02, 1 - step / num_steps)) for o in optimizers]
    with run:
        for step in range(num_steps):
            losses.append(one_step(ddp, optimizers, case, seed, place.rank, num_steps - 1 - step))
            for schedule in schedules:
                schedule.step()
        found = {} if run.tuner is None else {"plan": str(run.plan), "why": run.tuner.explanation}
    compared = round(num_steps / ARMS[arm]) // 10
    return {"loss": statistics.fmean(losses[-compared:]), **found}


def one_step(
    ddp: nn.Module, optimizers: Sequence[torch.optim.Optimizer], case: Case, seed: int, rank: int, left: int
) -> float:
    """Make one step, after which so many are left; return the loss."""
    for each in optimizers:
        each.zero_grad()
    total = 0.0
    for part in range(case.accumulate):
        x, y = batch(case, seed, rank, case.accumulate * left + part)
        last = part == case.accumulate - 1
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=case.autocast),
            torch.enable_grad() if last else ddp.no_sync(),
        ):
            output = ddp(x, y) if case.takes_labels else ddp(x)
            loss = case.loss(output, y) / case.accumulate
            loss.backward()
        total += float(loss.detach())
    if case.clip:
        nn.utils.clip_grad_norm_(ddp.parameters(), case.clip)
    for each in optimizers:
        each.step()
    return total


def line_of(case: Case, optimizer: str, arm: str, seed: int, num_steps: int = STEPS) -> dict[str, Any]:
    """Run one trial; return its line."""
    steps, start_s = round(num_steps * ARMS[arm]), time.perf_counter()
    line: dict[str, Any] = {"model": case.name, "optimizer": optimizer, "arm": arm, "seed": seed, "steps": steps}
    try:
        found = pliant.run_world(RANKS, lambda place: trained(place, case, optimizer, arm, seed, steps))
        line |= found[0] | {"loss": statistics.fmean(each["loss"] for each in found)}
    except Exception as error:  # noqa: BLE001  a failed run is a result
        line |= {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-2000:]}
    return line | {"seconds": round(time.perf_counter() - start_s, 1)}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: of each model, optimizer and quality, the loss against DDP's, and whether it passes."""
    known = {(x["model"], x["optimizer"], x["arm"], x["seed"]): x for x in lines}
    rows = ["| model | optimizer | quality | DDP's loss | difference | two errors | seeds | |", "|" + "---|" * 8]
    for case, optimizer, arm in itertools.product(CASES, OPTIMIZERS, list(ARMS)[1:]):
        pairs = [
            (known.get((case.name, optimizer, "ddp", seed)), known.get((case.name, optimizer, arm, seed)))
            for seed in SEEDS
        ]
        done = [(one, other) for one, other in pairs if one is not None and other is not None]
        if not done:
            continue
        failed = [each["error"] for pair in done for each in pair if "error" in each]
        if failed:
            rows.append(f"| {case.name} | {optimizer} | {arm[5:]} | | | | {len(done)} | {failed[0][:80]} |")
            continue
        base = statistics.fmean(one["loss"] for one, _ in done)
        gaps = [(other["loss"] - one["loss"]) / base for one, other in done]
        error = ERRORS * statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
        gap = statistics.fmean(gaps)
        verdict = "" if gap <= max(ALLOWED, error) else "**worse**"
        cells = (case.name, optimizer, arm[5:], f"{base:.4g}", f"{gap:+.2%}", f"{error:.2%}", len(gaps), verdict)
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="*", help="models, by a pattern of names")
    parser.add_argument("--table", action="store_true", help="print the table alone")
    parser.add_argument("--list", action="store_true", help="say what is left, and run nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    importlib.import_module("pliant.comm.transport").new_comm = slow_group
    lines = read_records(given.out) if given.out.exists() else []
    done = {(x["model"], x["optimizer"], x["arm"], x["seed"]) for x in lines}
    asked = [trial for trial in trials() if fnmatch.fnmatch(trial[0].name, given.only)]
    left = [trial for trial in asked if (trial[0].name, *trial[1:]) not in done]
    if given.list:
        say_left([f"{case.name}, {optimizer}, {arm}, {seed}" for case, optimizer, arm, seed in left], len(asked))
        return
    for case, optimizer, arm, seed in [] if given.table else left:
        lines.append(line_of(case, optimizer, arm, seed))
        append_record(given.out, lines[-1])
    print(table(lines))


if __name__ == "__main__":
    main()
