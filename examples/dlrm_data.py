"""Where the clicks come from that `dlrm.py` trains on: generated, or logs that you have. The same on all ranks."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch

from pliant.recsys import (
    CRITEO_BAGS,
    CRITEO_ROWS,
    ClickBatch,
    ClickLog,
    Clicks,
    criteo_batches,
    load_flights,
    load_movielens,
)
from pliant.recsys.fetch import find_flights, find_movielens

_NUM_DENSE = 13
"""Of Criteo's samples."""

_TEST_RANK = 1 << 20
"""A rank that no training has: what it draws is what all are tested on."""


class Source(Protocol):
    """A click log."""

    names: tuple[str, ...]
    """Of the tables."""
    num_rows: tuple[int, ...]
    num_dense: int
    best_auc: float | None
    """What no model can beat, where it is known."""

    def train(self, step: int, rank: int, size: int, num_samples: int) -> ClickBatch:
        """Return a rank's batch of a step; a resumed run asks for the same ones."""
        ...

    def test(self, rank: int, size: int, num_samples: int, num_batches: int) -> Iterator[ClickBatch]:
        """Yield a rank's part of what is kept for testing, as many batches for each rank."""
        ...


class Generated:
    """Clicks by Zipf's law over tables of Criteo's sizes, with a label that rows and dense features decide."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._clicks = Clicks(
            max_rows=options.max_rows,
            bag_sizes=CRITEO_BAGS if options.pooling == "criteo" else int(options.pooling),
            exponent=options.skew,
            seed=options.seed,
        )
        self.num_rows = self._clicks.tables
        self.names = tuple(f"c{t + 1}" for t in range(len(CRITEO_ROWS)))
        self.num_dense = _NUM_DENSE
        self.best_auc = self._clicks.best_auc(num_samples=20_000)

    def train(self, step: int, rank: int, size: int, num_samples: int) -> ClickBatch:
        return self._clicks.batch(step, rank, num_samples)

    def test(self, rank: int, size: int, num_samples: int, num_batches: int) -> Iterator[ClickBatch]:
        return (self._clicks.batch(k, _TEST_RANK + rank, num_samples) for k in range(num_batches))


class Log:
    """A log in memory: the first 80 % in time are trained on, shuffled anew in each epoch, the rest is tested on."""

    def __init__(self, log: ClickLog, seed: int) -> None:
        self.names, self.num_rows, self.best_auc = log.names, log.num_rows, None
        self._train, self._test = log.split()
        self.num_dense = log.samples.dense.shape[1]
        self._seed, self._epoch = seed, -1
        self._order = torch.empty(0, dtype=torch.int64)

    def train(self, step: int, rank: int, size: int, num_samples: int) -> ClickBatch:
        num_steps = self._train.num_samples // (size * num_samples)
        if num_steps == 0:
            raise ValueError(
                f"{size} ranks with batches of {num_samples} need {size * num_samples} samples in a step, but the log "
                f"has {self._train.num_samples} to train on; make --batch smaller."
            )
        epoch, step = divmod(step, num_steps)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed * 10_000 + epoch)
            self._epoch, self._order = epoch, torch.randperm(self._train.num_samples, generator=generator)
        first = (step * size + rank) * num_samples
        return self._train.take(self._order[first : first + num_samples])

    def test(self, rank: int, size: int, num_samples: int, num_batches: int) -> Iterator[ClickBatch]:
        cuts = [self._test.num_samples * k // (size * num_batches) for k in range(size * num_batches + 1)]
        for k in range(rank * num_batches, (rank + 1) * num_batches):
            yield self._test.part(cuts[k], cuts[k + 1])


@dataclass
class Criteo:
    """Criteo's files, as they are published: one to train on, in its own order, and one to test on."""

    path: Path
    test_path: Path
    max_rows: int
    names: tuple[str, ...] = tuple(f"c{t + 1}" for t in range(len(CRITEO_ROWS)))
    num_dense: int = _NUM_DENSE
    best_auc: float | None = None
    _coming: tuple[int, Iterator[ClickBatch]] | None = None

    @property
    def num_rows(self) -> tuple[int, ...]:
        return tuple(min(rows, self.max_rows) for rows in CRITEO_ROWS)

    def train(self, step: int, rank: int, size: int, num_samples: int) -> ClickBatch:
        wanted = step * size + rank
        if self._coming is None or self._coming[0] > wanted:
            self._coming = 0, self._read(self.path, num_samples)
        at, batches = self._coming
        found = next(islice(batches, wanted - at, None), None)
        if found is None or found.num_samples < num_samples:
            raise ValueError(f"{self.path} ends in step {step}; ask for fewer --steps.")
        self._coming = wanted + 1, batches
        return found

    def test(self, rank: int, size: int, num_samples: int, num_batches: int) -> Iterator[ClickBatch]:
        return islice(self._read(self.test_path, num_samples), rank, size * num_batches, size)

    def _read(self, path: Path, num_samples: int) -> Iterator[ClickBatch]:
        return criteo_batches(path, num_rows=self.num_rows, num_samples=num_samples)


def source_of(options: argparse.Namespace) -> Source:
    """Return the log that was asked for.

    Raises:
        ValueError: Criteo's files have no folder.
        DataMissingError: A log is neither in the folder nor could it be fetched.

    """
    if options.data == "generated":
        return Generated(options)
    if options.data == "criteo":
        if not options.folder:
            raise ValueError("--data criteo needs --folder with train.txt and test.txt; they are not to be had freely.")
        folder = Path(options.folder)
        return Criteo(folder / "train.txt", folder / "test.txt", options.max_rows)
    find, read = {"movielens": (find_movielens, load_movielens), "flights": (find_flights, load_flights)}[options.data]
    return Log(read(find(options.folder)), options.seed)


def options_of_data(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which log."""
    parser.add_argument("--data", choices=("generated", "movielens", "flights", "criteo"), default="generated")
    parser.add_argument(
        "--folder", default="", help="with the files of a log, if you have them; criteo: train.txt, test.txt"
    )
    parser.add_argument("--max-rows", type=int, default=100_000, help="of a table of Criteo's")
    parser.add_argument("--pooling", default="1", help="ids of each generated bag, or 'criteo': as published")
    parser.add_argument("--skew", type=float, default=1.05, help="exponent of the law of generated rows")
    parser.add_argument("--seed", type=int, default=0)
