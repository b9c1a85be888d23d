"""Accuracy against bytes on the wire: tasc, and other ways to choose, beside dense training in 16 bits.

``python benchmarks/tasc/accuracy.py --out results.jsonl``            everything: 1500 runs of 15 to 30 s on one core
``python benchmarks/tasc/accuracy.py --out results.jsonl --short``    the stated short form: 90 runs
``python benchmarks/tasc/accuracy.py --out results.jsonl --headline``  tasc beside its peers, three seeds
``python benchmarks/tasc/accuracy.py --out results.jsonl --only 'images/sgd/130/*' --seeds 3 --time-limit 1800``

Paired runs: for each seed all arms have the same weights, batches and learning rates. Four workers are threads of this
process, joined by real Gloo groups, so that what they send is what they would send anywhere; bytes are those that
``run.stats()["sent_bytes"]`` has counted, indices, scores, lengths and dense parts included, of all workers together.
A ratio is the bytes of a dense float32 all-reduce, counted as well, over an arm's. Arms whose setting is not a share of
bytes are given the setting at which they were measured to send what the ratio allows (`fit` in the file, once for
each task, optimizer, arm and ratio); one that cannot send so little is said to (`unreachable`).

Tasks: Fashion-MNIST with the network of `pliant bench --train`, and State of the Union addresses with a decoder, both
with SGD of momentum 0.9 and with Adam; Fashion-MNIST with a perceptron of 5.5 M parameters, with SGD and at 130 alone.
Arms and ratios are in `accuracy_arms.py`: tasc with p of 0, 0.5 and 1, rows and blocks of 64 at 10, 30, 130 and 300,
and blocks of 16, 32 and 128 at 130, all with values of 4 bits, and blocks of 64 also with 16 and 32; magnitude (blocks
of 64 of the whole model), uniform (the same share of each layer; also in blocks of 16), random elements, top-k
elements; peers at 30, 130 and 300, sparcml and scalecom also with values of 4 bits; and tasc with the momentum before
the choice (corrected, SGD alone). The short form is images with SGD and language with Adam, at 130, dense, tasc of p 0
and 1 with rows and blocks of 64, magnitude, uniform in blocks of 16, random and top-k, five seeds.

Each finished run is appended to the file; the same command goes on where it stopped. Runs of another number of steps
are kept apart. At the end, or with --table alone, a table: mean, deviation, paired difference to dense, its interval.
"""

import argparse
import fnmatch
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from accuracy_arms import Arm, arms
from accuracy_book import Book, say_left
from accuracy_runs import as_record, dense_bytes, fitted_size, trained
from accuracy_table import table
from accuracy_tasks import OPTIMIZERS, Task, task_named

STEPS = {"images": 350, "language": 250, "large": 350}
SHORT = tuple(
    f"{cell}/{arm}"
    for cell in ("images/sgd", "language/adam")
    for arm in (
        "2/dense",
        *(f"130/tasc-p{p}-{of}" for p in (0, 1) for of in ("rows", "b64")),
        "130/magnitude",
        "130/uniform-b16",
        "130/random",
        "130/topk",
    )
)

_BESIDE = ("sparcml*", "scalecom*", "oktopk", "gtopk", "tasc-p[01]-b64", "tasc-p[01]-b64-32bit")
HEADLINE = (
    *("images/sgd/2/dense", "language/adam/2/dense", "large/sgd/2/dense"),
    *(f"images/sgd/{ratio}/{arm}" for ratio in (30, 130, 300) for arm in _BESIDE),
    *(f"language/adam/{ratio}/{arm}" for ratio in (30, 130, 300) for arm in _BESIDE),
    *(f"large/sgd/130/{arm}" for arm in _BESIDE),
)
"""tasc and its peers, with values of 4 and of 32 bits where they can carry them."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    task: str
    optimizer: str
    ratio: int
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """What --only is compared with."""
        return f"{self.task}/{self.optimizer}/{self.ratio}/{self.arm}"

    def about(self, steps: int) -> dict[str, str | int]:
        """Return the part of a record that says what it is of."""
        return {
            "task": self.task,
            "optimizer": self.optimizer,
            "arm": self.arm,
            "ratio": self.ratio,
            "seed": self.seed,
            "steps": steps,
        }


def jobs(seeds: int, only: Sequence[str]) -> list[Job]:
    """Return all runs that are asked for, one seed after the other, so that there is a whole table soon."""
    listed = [
        Job(task=task, optimizer=optimizer, ratio=ratio, arm=arm.name, seed=seed)
        for seed in range(seeds)
        for task in STEPS
        for optimizer in OPTIMIZERS
        for arm in arms().values()
        if optimizer in arm.optimizers
        for ratio in arm.ratios
        if task != "large" or (optimizer == "sgd" and ratio in (2, 130))
    ]
    chosen = [job for job in listed if any(fnmatch.fnmatchcase(job.name, pattern) for pattern in only)]
    if not chosen:
        raise ValueError(f"nothing is called {', '.join(only)}; runs are called as in {listed[0].name}.")
    return chosen


class Bench:
    """Carries out jobs, and writes down what came out.

    Args:
        journal: Where it is written.
        steps: Of each run; 0 for those of the task.
        data: Task -> folder of the user's own.

    """

    def __init__(self, journal: Book, steps: int, data: dict[str, str]) -> None:
        self._journal = journal
        self._steps = steps
        self._task = cache(lambda name: task_named(name, data.get(name, "")))

    def steps_of(self, task: str) -> int:
        """Return the length of a run."""
        return self._steps or STEPS[task]

    def done(self, job: Job) -> bool:
        """Say whether a job is in the book, or cannot be."""
        about = job.about(self.steps_of(job.task))
        return bool(self._journal.find(kind="run", **about) or self._unreachable(job))

    def carry_out(self, job: Job) -> str:
        """Run a job; return a line about it."""
        task, arm, steps = self._task(job.task), arms()[job.arm], self.steps_of(job.task)
        size = self._size(task, arm, job)
        if size is None:
            return f"{job.name}: {self._unreachable(job)}"
        torch.manual_seed(job.seed)
        plan = arm.plan(size, task.model())
        outcome = trained(task, plan, job.optimizer, job.seed, steps, momentum=arm.momentum)
        self._journal.add({"kind": "run", **job.about(steps), "size": size, **as_record(outcome)})
        value = "diverged" if outcome.value is None else task.learning.metric.text(outcome.value)
        fewer = self._dense(task, job.optimizer) / outcome.sent_bytes
        return f"{job.name} seed {job.seed}: {value}, {fewer:.1f}x fewer bytes, {outcome.wall_s:.0f} s"

    def table(self, jobs: Sequence[Job]) -> str:
        """Return the tables of those of the jobs that are done."""
        found = [self._journal.find(kind="run", **job.about(self.steps_of(job.task))) for job in jobs]
        dense = {(r["task"], r["optimizer"]): r["sent_bytes"] for r in self._journal.of_kind("float32")}
        lines = [table([record for record in found if record], dense)]
        missing = {text for job in jobs if (text := self._unreachable(job))}
        return "\n".join([*lines, *sorted(missing)])

    def _dense(self, task: Task, optimizer: str) -> float:
        about = {"kind": "float32", "task": task.name, "optimizer": optimizer}
        found = self._journal.find(**about)
        if found is None:
            found = self._journal.add({**about, "sent_bytes": dense_bytes(task, optimizer)})
        return found["sent_bytes"]

    def _size(self, task: Task, arm: Arm, job: Job) -> float | None:
        about = {"task": job.task, "optimizer": job.optimizer, "arm": job.arm, "ratio": job.ratio}
        found = self._journal.find(kind="fit", **about)
        if found is not None:
            return found["size"]
        dense = self._dense(task, job.optimizer)
        try:
            size = fitted_size(task, arm, job.optimizer, job.ratio, dense)
        except ValueError as error:
            self._journal.add({"kind": "unreachable", **about, "why": str(error)})
            return None
        self._journal.add({"kind": "fit", **about, "size": size})
        return size

    def _unreachable(self, job: Job) -> str:
        about = {"task": job.task, "optimizer": job.optimizer, "arm": job.arm, "ratio": job.ratio}
        found = self._journal.find(kind="unreachable", **about)
        return found["why"] if found else ""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--only", action="append", help="pattern over task/optimizer/ratio/arm; repeatable")
    parser.add_argument("--short", action="store_true", help="the stated short form")
    parser.add_argument("--headline", action="store_true", help="tasc beside its peers at 30, 130 and 300")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="of each run; 0: those of the task")
    parser.add_argument("--time-limit", type=float, default=0.0, help="no run begins after so many seconds; 0: none")
    parser.add_argument("--images", default="", help="folder with images, as --data of pliant bench")
    parser.add_argument("--text", default="", help="folder with text")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="say what is left, and run nothing")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    bench = Bench(Book(given.out), given.steps, {"images": given.images, "language": given.text, "large": given.images})
    asked = jobs(given.seeds, given.only or (SHORT if given.short else HEADLINE if given.headline else ["*"]))
    left = [job for job in asked if not bench.done(job)]
    if given.list:
        say_left([f"{job.name}/{job.seed}" for job in left], len(asked))
        return
    todo = [] if given.table else left
    end_s = time.monotonic() + (given.time_limit or float("inf"))
    for num, job in enumerate(todo):
        if time.monotonic() >= end_s:
            print(f"the time is over; {len(todo) - num} runs are left: the same command goes on with them.", flush=True)
            break
        if not bench.done(job):
            print(f"[{num + 1} of {len(todo)}] {bench.carry_out(job)}", flush=True)
    print(bench.table(asked))


if __name__ == "__main__":
    main()
