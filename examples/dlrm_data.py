"""Where the clicks come from that `dlrm.py` trains on: generated, or logs that you have. The same on all ranks."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from click_log import ClickBatch, ClickLog, load_table
from dlrm_logs import flights, movielens

from pliant.recsys import CRITEO_BAGS, CRITEO_ROWS, Frequencies, criteo_batches

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


def auc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the area under the ROC curve: P(a clicked sample scores higher than one that is not), ties one half.

    Labels may be probabilities of a click: then it is the area that is expected over labels drawn from them.
    """
    label = np.asarray(labels, np.float64)
    _, place = np.unique(np.asarray(scores), return_inverse=True)
    clicked, others = np.bincount(place, label), np.bincount(place, 1 - label)
    return float(clicked @ (np.cumsum(others) - others / 2) / (clicked.sum() * others.sum()))


class Generated:
    """Clicks by Zipf's law over tables of Criteo's sizes, with a label that rows and dense features decide.

    Row i of a table is its i-th most frequent. Of the variance of the logit 0.8 comes from rows, each with an effect
    that its number decides, and 0.2 from dense features.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.num_rows = tuple(min(rows, options.max_rows) for rows in CRITEO_ROWS)
        self.names = tuple(f"c{t + 1}" for t in range(len(CRITEO_ROWS)))
        self.num_dense = _NUM_DENSE
        self._seed = options.seed
        self._bag_sizes = CRITEO_BAGS if options.pooling == "criteo" else (int(options.pooling),) * len(CRITEO_ROWS)
        self._laws = [table.bins for table in Frequencies.zipf(self.num_rows, options.skew).tables]
        _, chances = self._drawn(0, 2 * _TEST_RANK, 20_000)
        self.best_auc = auc(chances, chances)

    def train(self, step: int, rank: int, size: int, num_samples: int) -> ClickBatch:
        return self._drawn(step, rank, num_samples)[0]

    def test(self, rank: int, size: int, num_samples: int, num_batches: int) -> Iterator[ClickBatch]:
        return (self._drawn(k, _TEST_RANK + rank, num_samples)[0] for k in range(num_batches))

    def _drawn(self, step: int, rank: int, num: int) -> tuple[ClickBatch, npt.NDArray[np.float64]]:
        """Return the batch of a rank in a step, the same on every machine, and its probabilities of a click (num,)."""
        rng = np.random.default_rng([self._seed, step, rank])
        dense = rng.standard_normal((num, _NUM_DENSE))
        z = np.sqrt(0.2 / _NUM_DENSE) * dense.sum(axis=1)
        all_ids: list[torch.Tensor] = []
        for t, ((p, rows), size) in enumerate(zip(self._laws, self._bag_sizes, strict=True)):
            share = np.cumsum(p * rows)
            which = np.searchsorted(share, rng.random(num * size) * share[-1], side="right")
            first = np.cumsum(rows) - rows
            ids = (first[which] + np.floor(rng.random(num * size) * rows[which])).astype(np.int64)
            effects = np.sqrt(2) * np.cos((t + 1) * ids)  # mean 0, variance 1
            z += np.sqrt(0.8 / len(self.num_rows) / size) * effects.reshape(num, size).sum(axis=1)
            all_ids.append(torch.from_numpy(ids))
        chances = 1 / (1 + np.exp(1 - 1.5 * z))
        batch = ClickBatch(
            dense=torch.from_numpy(dense.astype(np.float32)),
            ids=tuple(all_ids),
            offsets=tuple(torch.arange(num) * size for size in self._bag_sizes),
            label=torch.from_numpy((rng.random(num) < chances).astype(np.float32)),
        )
        return batch, chances


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
        for batch in criteo_batches(path, num_rows=self.num_rows, num_samples=num_samples):
            yield ClickBatch(
                dense=torch.from_numpy(batch.dense.astype(np.float32)),
                ids=tuple(map(torch.from_numpy, batch.ids)),
                offsets=(torch.arange(len(batch.label)),) * len(CRITEO_ROWS),
                label=torch.from_numpy(batch.label.astype(np.float32)),
            )


def source_of(options: argparse.Namespace) -> Source:
    """Return the log that was asked for.

    Raises:
        ValueError: Criteo's files have no folder, or a table of the user's own no label or no categories.
        RuntimeError: A log is neither in the folder nor could it be fetched.

    """
    if options.data == "generated":
        return Generated(options)
    if options.data == "criteo":
        if not options.folder:
            raise ValueError("--data criteo needs --folder with train.txt and test.txt; they are not to be had freely.")
        folder = Path(options.folder)
        return Criteo(folder / "train.txt", folder / "test.txt", options.max_rows)
    if options.data == "table":
        if not (options.folder and options.label and options.categories):
            raise ValueError(
                "--data table needs --folder FILE, CSV or Parquet, with --label and --categories of its columns."
            )
        return Log(
            load_table(options.folder, label=options.label, categories=options.categories.split(",")), options.seed
        )
    read = {"movielens": movielens, "flights": flights}[options.data]
    return Log(read(options.folder), options.seed)


def options_of_data(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which log."""
    parser.add_argument("--data", choices=("generated", "movielens", "flights", "criteo", "table"), default="generated")
    parser.add_argument(
        "--folder",
        default="",
        help="with the files of a log; criteo: train.txt and test.txt; table: the file itself",
    )
    parser.add_argument("--label", default="", help="column of a table of your own that holds 0 and 1")
    parser.add_argument("--categories", default="", help="its columns that become embedding tables: user,item")
    parser.add_argument("--max-rows", type=int, default=100_000, help="of a table of Criteo's")
    parser.add_argument("--pooling", default="1", help="ids of each generated bag, or 'criteo': as published")
    parser.add_argument("--skew", type=float, default=1.05, help="exponent of the law of generated rows")
    parser.add_argument("--seed", type=int, default=0)
