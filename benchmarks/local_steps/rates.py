"""Finished trainings, one a line, and what trials make of them: the best rate of an arm, and its loss."""

import sys
from collections.abc import Callable
from pathlib import Path

from trials import ADAMW_DDP, MULOCO, TUNED_STEPS, Arm, Record

from pliant_bench.lab.language import first_rate
from pliant_bench.lab.ratios import tuned_rate

sys.path.append(str(Path(__file__).parents[1]))

from tasc.accuracy_book import Book

KEY = ("size", "windows", "ranks", "steps", "optimizer", "algorithm", "decay", "lr", "seed")
DIVERGED_LOSS = 1e9
"""Loss that stands for a training that came to a loss or a gradient that was not finite."""


class Trainings(Book):
    """Finished trainings of one rate and seed each; the first of a key counts."""

    KEY = KEY


class NotTrainedError(Exception):
    """A training that a trial needs has not been made."""


Train = Callable[[Record], Record]
"""Returns the line of a training of these settings."""


class Rates:
    """Trials as functions of trainings, so that they go on after any training.

    Args:
        train: Returns a training's line, from a file or by training.

    """

    def __init__(self, train: Train) -> None:
        self._train = train

    def carry_out(self, trial: Record) -> tuple[float, Record]:
        """Return the rate of a trial, and the line of the training at it."""
        if trial["kind"] == "tuned":
            rate, _ = self._best(trial, first_rate(trial["size"], trial["windows"]))
        elif trial["kind"] == "scaled":
            rate = trial["times"] * self._rate_of(ADAMW_DDP, trial)
        elif trial["kind"] == "borrowed":
            rate = self._rate_of(MULOCO, trial)
        else:
            rate = self.checked({**trial, "seed": 0})
        return rate, self.training(trial, rate)

    def checked(self, trial: Record) -> float:
        """Return the best rate of an arm in a cell, at the full length."""
        from_short, _ = self._best({**trial, "steps": TUNED_STEPS}, first_rate(trial["size"], trial["windows"]))
        return self._best(trial, from_short)[0]

    def _rate_of(self, arm: Arm, trial: Record) -> float:
        """Return the best rate of another arm in a trial's cell."""
        named = {"arm": arm.name, "algorithm": arm.algorithm, "optimizer": arm.optimizer, "loop_steps": arm.loop_steps}
        return self.checked({**trial, **named, "seed": 0})

    def training(self, trial: Record, rate: float) -> Record:
        """Return the line of a trial's training at a rate."""
        algorithm, times = trial["algorithm"].replace("{steps}", str(trial["steps"])), trial["loop_steps"]
        about = {**{name: trial.get(name) for name in KEY}, "algorithm": algorithm, "lr": rate}
        return self._train({**about, "steps": trial["steps"] * times, "windows": trial["windows"] // times})

    def _best(self, trial: Record, first: float) -> tuple[float, dict[float, float]]:
        return tuned_rate(first, lambda rate: loss_of(self.training(trial, rate)))


def loss_of(line: Record) -> float:
    """Return the held-out loss at the end of a training."""
    return DIVERGED_LOSS if line["diverged"] else line["curve"][-1][1]


def from_file(trainings: Trainings) -> Train:
    """Return what finds trainings and makes none; it raises NotTrainedError."""

    def find(about: Record) -> Record:
        if (line := trainings.find(**about)) is None:
            raise NotTrainedError(str(about))
        return line

    return find
