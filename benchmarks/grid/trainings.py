"""Trainings of arms in one world of ranks, one after the other, each with a line."""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from grid.job import Job, Record
from grid.trials import HOSTS, STEPS

from pliant.network import EmulatedCluster
from pliant_bench.data.fetch import find_images
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.session import run_workers
from pliant_bench.harness.setup import Setup

TARGET, EVERY = 0.85, 10
PER_WORLD = 6
"""Trainings of one start of the ranks, so that a time limit is met to some minutes."""


def train(
    job: Job,
    trials: Sequence[Record],
    lr: float,
    cluster: EmulatedCluster | LocalHosts,
    about: Record | None = None,
    slow_share: float = 0.0,
) -> None:
    """Train the arms of trials of one seed and write their lines; one that fails gets a line and ends no other.

    Args:
        job: To which the trials belong.
        trials: What is to be trained.
        lr: Largest learning rate.
        cluster: Where.
        about: Facts about the network, which each line gets beside times; None on loopback.
        slow_share: Speed of the last host, as a share of that of the others; 0: all are alike.

    """
    left, timed = list(trials), about is not None
    about = {"learning_rate": lr, **(about or {})}
    while left and job.has_time():
        some = left[: int(min(PER_WORLD, job.may))]
        setup = Setup(
            mode="train",
            models=("cnn",),
            arms=tuple(trial["arm"] for trial in some),
            seeds=(some[0]["seed"],),
            train_steps=STEPS,
            evaluate_every=EVERY,
            target=TARGET,
            lr=lr,
            slow_share=slow_share,
            data=str(find_images("")),
            emulated=timed,
        )
        begun = len(left)

        def keep(records: list[Record]) -> None:
            job.add(left.pop(0), {**about, **brief(records, timed=timed)})

        job.begin()
        try:
            run_workers(setup, cluster, HOSTS, keep)
        except RuntimeError as error:
            if begun - len(left) == len(some):
                raise  # after the last training, so no trial has failed
            job.add(left.pop(0), {**about, "error": str(error).strip().rpartition("\n")[2][:400]})


def brief(records: list[Record], *, timed: bool) -> Record:
    """Return the last training's curve and end; with times, also of computing alone, on a network of their own."""
    record = records[-1]
    names = ("step", "accuracy", *(("time_s",) if timed else ()))
    curve = [{name: round(point[name], 4) for name in names} for point in record["curve"]]
    found = {"curve": curve, "final_accuracy": record["final_accuracy"], "sent_bytes": record["sent_bytes"]}
    if timed:
        alone = next(record for record in records if record["kind"] == "alone")
        found |= {"step_s": record["step_s"], "computing_s": alone["step_s"]}
    return found
