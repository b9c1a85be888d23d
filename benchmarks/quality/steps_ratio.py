"""How many more steps an exchange needs to the loss of 16-bit all-reduce: tasks x optimizers x exchanges x seeds.

``nice -n 19 python benchmarks/quality/steps_ratio.py --out benchmarks/results/steps_ratio_2core_2026-11-25.jsonl``
``python benchmarks/quality/steps_ratio.py --out FILE --only 'curve/lstm/*' --time-limit 1800``
``python benchmarks/quality/steps_ratio.py --out FILE --table``    carries out nothing
``python benchmarks/quality/steps_ratio.py --out FILE --list``     says what is left

The list of trials, with seeds, is `trials_seed1.jsonl` (see `trials.py`): 842 trials, 14,300 s of one idle core.
Workers are threads of this process with real Gloo groups between them (`pliant_bench.lab`), so the exchange is the
engine's own. One finished trial is one line of the file; the same command goes on where it stopped.

A ratio is the step at which a training first comes to the target over the step at which 16-bit all-reduce of the same
task, optimizer, ranks and seed does. The target is the held-out loss that it has after 80 % of its steps. Learning
rates depend on the step alone: a tenth of the steps up, down to a tenth of the largest until the last, and no further;
a training that has not reached the target after twice the base's steps to it has none (`not reached`).
"""

import argparse
import fnmatch
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from trials import BASE, RANKS, Record, gene_of, read, setting_text

from pliant.planner.genome import Genome
from pliant_bench.lab.ratios import TARGET_SHARE, step_reaching, target_of, tuned_rate
from pliant_bench.lab.tasks import LabTask, load_task
from pliant_bench.lab.training import Outcome, Recipe, train

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import Book, say_left

KEY = ("kind", "task", "optimizer", "setting", "ranks", "seed")
MOST_RATIO = 2.0
"""A training ends after so many times the steps of the base to the target."""
DIVERGED_LOSS = 1e9
"""Loss that stands for a training that came to a loss or a gradient that was not finite."""


class Lines(Book):
    """Finished trials, one a line; the first of a key counts."""

    KEY = KEY

    def about(self, kind: str, trial: Record, **other: Any) -> Record:
        """Return the finished trial of a kind that another one of the same cell needs. Raises ValueError if none."""
        wanted = {**{name: trial[name] for name in KEY}, "kind": kind, "setting": setting_text(BASE), **other}
        found = self.find(**wanted)
        if found is None:
            raise ValueError(
                f"{name_of(trial)} needs the trial {name_of(wanted)}, which has not been carried out; let --only "
                "name it as well."
            )
        return found


def name_of(trial: Record) -> str:
    """Return what --only is compared with."""
    return "/".join(str(trial[name]) for name in KEY)


class Bench:
    """Carries out trials and writes a line about each."""

    def __init__(self, lines: Lines, images: str, text: str) -> None:
        self._lines = lines
        self._task = cache(lambda name: load_task(name, {"images": images, "clicks": ""}.get(name, text)))

    def carry_out(self, trial: Record) -> str:
        """Carry out a trial; return a sentence about it."""
        task = self._task(trial["task"])
        about = {name: trial[name] for name in (*KEY, "family", "settings")}
        result = {"tuned": self._tune, "base": self._base, "curve": self._curve}[trial["kind"]](task, trial)
        self._lines.add({**about, **result})
        told = {key: value for key, value in result.items() if key not in ("curve", "losses")}
        return f"{name_of(trial)}: {told}"

    def _tune(self, task: LabTask, trial: Record) -> Record:
        start_s = time.perf_counter()

        def loss_at(lr: float) -> float:
            outcome = self._trained(task, trial, lr=lr, every=task.steps)
            return DIVERGED_LOSS if outcome.diverged else outcome.curve[-1]["loss"]

        lr, losses = tuned_rate(task.first_lr[trial["optimizer"]], loss_at)
        return {"lr": lr, "losses": [(at, round(loss, 6)) for at, loss in losses.items()], **_took(start_s)}

    def _base(self, task: LabTask, trial: Record) -> Record:
        start_s = time.perf_counter()
        lr = self._lines.about("tuned", trial, ranks=RANKS, seed=0)["lr"]
        outcome = self._trained(task, trial, lr=lr)
        curve = _curve(outcome)
        target = target_of(curve)
        step = step_reaching(curve, target)
        return {"lr": lr, "target": target, "step": step, "curve": curve, **_sent(outcome), **_took(start_s)}

    def _curve(self, task: LabTask, trial: Record) -> Record:
        start_s = time.perf_counter()
        base = self._lines.about("base", trial)
        last_step = round(MOST_RATIO * TARGET_SHARE * task.steps)
        facts: Record = {"lr": base["lr"], "target": base["target"], "step": None, "ratio": None}
        try:
            outcome = self._trained(task, trial, lr=base["lr"], last_step=last_step, target=base["target"])
        except ValueError as error:
            return {**facts, "why": f"refused: {error}", **_took(start_s)}
        curve = _curve(outcome)
        step = step_reaching(curve, base["target"])
        if step is not None:
            facts |= {"step": step, "ratio": step / base["step"]}
        why = "" if step is not None else "diverged" if outcome.diverged else "not reached"
        return {**facts, "why": why, "curve": curve, **_sent(outcome), **_took(start_s)}

    def _trained(self, task: LabTask, trial: Record, **other: Any) -> Outcome:
        recipe = Recipe(optimizer=trial["optimizer"], seed=trial["seed"], ranks=trial["ranks"], **other)
        return train(task, Genome(gene_of(trial)).plan(), recipe)


def _curve(outcome: Outcome) -> list[tuple[int, float]]:
    return [(point["step"], round(point["loss"], 6)) for point in outcome.curve]


def _sent(outcome: Outcome) -> Record:
    return {"sent_bytes": round(outcome.sent_bytes)}


def _took(start_s: float) -> Record:
    return {"wall_s": round(time.perf_counter() - start_s, 1)}


def table(lines: Lines) -> str:
    """Return each setting's ratios, seed after seed, by task and optimizer."""
    cells: dict[str, dict[str, list[str]]] = {}
    for line in lines.of_kind("curve"):
        ratio = "-" if line["ratio"] is None else f"{line['ratio']:.2f}"
        row = cells.setdefault(f"{line['setting']} on {line['ranks']} ranks", {})
        row.setdefault(f"{line['task']} {line['optimizer']}", []).append(ratio)
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    head = ["| setting | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    body = [f"| {name} | " + " | ".join(", ".join(row.get(n, [])) for n in names) + " |" for name, row in cells.items()]
    return "\n".join(head + body)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--only", action="append", help=f"pattern over {'/'.join(KEY)}; repeatable")
    parser.add_argument("--time-limit", type=float, default=0.0, help="no trial begins after so many seconds; 0: none")
    parser.add_argument("--images", default="", help="folder with images, as --data of pliant bench")
    parser.add_argument("--text", default="", help="folder with text")
    parser.add_argument("--table", action="store_true", help="carry out nothing")
    parser.add_argument("--list", action="store_true", help="say what is left, and carry out nothing")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    lines = Lines(given.out)
    patterns = given.only or ["*"]
    asked = [trial for trial in read() if any(fnmatch.fnmatchcase(name_of(trial), each) for each in patterns)]
    if not asked:
        parser.error(f"no trial is called {', '.join(patterns)}; they are called as in {name_of(read()[0])}.")
    left = [trial for trial in asked if lines.find(**{k: trial[k] for k in KEY}) is None]
    if given.list:
        say_left([name_of(trial) for trial in left], len(asked))
        return
    todo = [] if given.table else left
    end_s = time.monotonic() + (given.time_limit or float("inf"))
    bench = Bench(lines, given.images, given.text)
    for number, trial in enumerate(todo):
        if time.monotonic() >= end_s:
            print(f"the time is over; {len(todo) - number} trials are left: the same command goes on.", flush=True)
            break
        print(f"[{number + 1} of {len(todo)}] {bench.carry_out(trial)}", flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
