"""Clicks without a log: a seeded stream of batches with stated tables, skew, drift and a label that can be learned."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from pliant.recsys.frequencies.criteo import CRITEO_ROWS, NUM_DENSE
from pliant.recsys.frequencies.hashing import hashed
from pliant.recsys.frequencies.rows import Frequencies, RowFrequencies, per_table
from pliant_bench.clicks.batch import ClickBatch, auc
from pliant_bench.clicks.permutation import Permutation, uniform

__all__ = ["Clicks"]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_ROWS_SHARE = 0.8
"""Of the variance of the logit: what comes of rows; the rest comes of dense features."""
_HELD_OUT = 2**32
"""A rank that no run has; its batches measure the best AUC."""


@dataclass(frozen=True, kw_only=True)
class Clicks:
    """Synthetic click log. The same values, step and rank give the same batch on every machine.

    Lookups of a table are independent draws from Zipf's law (with a plateau: Mandelbrot's), by inverting its sum over
    bins of at most 1.2 %; row ids are the places in that law, permuted by arithmetic. Nothing is as large as a
    table. The label is drawn from sigmoid(bias + strength z), where z has about unit variance. Rows give 0.8 of it,
    each by an effect hashed from its id; a bag counts its sum over sqrt of its size. Dense features, which are standard
    normal, give 0.2.
    """

    num_rows: tuple[int, ...] = CRITEO_ROWS
    max_rows: int | None = None
    """Cap on the rows of a table, to scale down."""
    bag_sizes: int | tuple[int, ...] = 1
    """Lookups per sample, one for all tables or one per table; `CRITEO_BAGS` are published."""
    empty_share: float = 0.0
    """Share of bags that are empty, drawn per table and sample."""
    exponent: float = 1.05
    exponent_jitter: float = 0.1
    """The exponent of a table is up to so much above or below, by the seed."""
    plateau: float = 0.0
    """Shift of Mandelbrot's law: about so many of the most frequent rows are alike."""
    drift_share: float = 0.0
    """Share of the places whose rows change at once, every `drift_every` steps; 1 / drift_share is rounded."""
    drift_every: int = 1000
    bias: float = -1.0
    strength: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        per_table(self.bag_sizes, len(self.num_rows), "bag sizes")
        if not (0 <= self.empty_share < 1 and 0 <= self.drift_share <= 1 and self.drift_every >= 1):
            raise ValueError(
                "empty_share must be in [0, 1), drift_share in [0, 1], drift_every at least 1, but they are "
                f"{self.empty_share}, {self.drift_share} and {self.drift_every}."
            )
        if min(self.num_rows, default=0) < 1 or min(self._bag_sizes) < 1 or not 0 <= self.seed < 2**32:
            raise ValueError(
                f"there must be tables with at least 1 row each, bags of at least 1 and a seed in [0, 2^32), not rows "
                f"{self.num_rows}, bags {self.bag_sizes}, seed {self.seed}."
            )
        if (self.max_rows is not None and self.max_rows < 1) or self.exponent_jitter < 0 or self.exponent < 0:
            raise ValueError(
                f"max_rows must be at least 1, exponent and jitter at least 0, but are {self.max_rows}, "
                f"{self.exponent} and {self.exponent_jitter}."
            )

    @property
    def tables(self) -> tuple[int, ...]:
        """Rows of each table, after the cap."""
        return tuple(min(rows, self.max_rows or rows) for rows in self.num_rows)

    @cached_property
    def exponents(self) -> tuple[float, ...]:
        """The exponent of each table."""
        u = uniform(np.arange(len(self.num_rows), dtype=np.int64), self._key(0, 0))
        return tuple(np.maximum(0.0, self.exponent + self.exponent_jitter * (2 * u - 1)).tolist())

    def batch(self, step: int, rank: int, num_samples: int) -> ClickBatch:
        """Return the batch of a rank in a step."""
        rng = np.random.default_rng([self.seed, step, rank])
        batch, chance = self._drawn(rng, step, num_samples)
        return replace(batch, label=torch.from_numpy((rng.random(num_samples) < chance).astype(np.float32)))

    def best_auc(self, *, num_samples: int = 100_000, step: int = 0) -> float:
        """Return the AUC of the true click probabilities, which no model can beat; standard error about 0.3 /
        sqrt(samples).

        Expected over labels, and measured on samples that no rank draws.
        """
        rng = np.random.default_rng([self.seed, step, _HELD_OUT])
        chance = np.concatenate([self._drawn(rng, step, n)[1] for n in _parts(num_samples, 8192)])
        return auc(chance, chance)

    def frequencies(self, step: int = 0) -> Frequencies:
        """Return the law that lookups follow in a step, with the ids of its head: nothing is counted or estimated."""
        return Frequencies(
            tables=tuple(
                replace(
                    law,
                    head_ids=self.ids(t, law.head_ids, step),
                    pooling=size * (1 - self.empty_share),
                    bag_shares=np.bincount([0, min(size, 256)], [self.empty_share, 1 - self.empty_share]),
                )
                for t, (law, size) in enumerate(zip(self._laws, self._bag_sizes, strict=True))
            )
        )

    def ids(self, table: int, places: Ids, step: int) -> Ids:
        """Return the rows (k,) that have these places (k,) in a step: a bijection; place 0 is the most frequent row.

        Places are dealt to 1 / drift_share classes; at each change the rows of the next class are permuted among
        themselves.
        """
        if self.drift_share and step >= self.drift_every:
            places = self._drifted(table, places, step // self.drift_every)
        return self._permutations[table](places)

    def _drawn(self, rng: np.random.Generator, step: int, num: int) -> tuple[ClickBatch, Floats]:
        """Return a batch without labels, and the probabilities (num,) of a click."""
        dense = rng.standard_normal((num, NUM_DENSE))
        effect = np.zeros(num)
        all_ids: list[Ids] = []
        all_offsets: list[Ids] = []
        for t, size in enumerate(self._bag_sizes):
            sizes = np.where(rng.random(num) < self.empty_share, 0, size) if self.empty_share else np.full(num, size)
            ids = self.ids(t, self._places(rng, t, int(sizes.sum())), step)
            of_row = (2 * uniform(ids, self._effects[t]) - 1) * np.sqrt(3)
            effect += np.bincount(np.repeat(np.arange(num), sizes), of_row, num) / np.sqrt(size)
            all_ids.append(ids)
            all_offsets.append(np.cumsum(sizes) - sizes)
        weights = 2 * uniform(np.arange(NUM_DENSE, dtype=np.int64), self._key(0, 3)) - 1
        z = np.sqrt(_ROWS_SHARE / len(self.num_rows)) * effect
        z += np.sqrt(1 - _ROWS_SHARE) * dense @ (weights / np.linalg.norm(weights))
        batch = ClickBatch(
            dense=torch.from_numpy(dense.astype(np.float32)),
            ids=tuple(map(torch.from_numpy, all_ids)),
            offsets=tuple(torch.from_numpy(o.astype(np.int64)) for o in all_offsets),
            label=torch.zeros(num),
        )
        return batch, 1 / (1 + np.exp(-(self.bias + self.strength * z)))

    def _places(self, rng: np.random.Generator, table: int, num: int) -> Ids:
        sums, rows, starts = self._sums[table]
        u = rng.random(num) * sums[-1]
        which = np.minimum(np.searchsorted(sums, u, side="right") - 1, rows.size - 1)
        inside = (u - sums[which]) / (sums[which + 1] - sums[which])
        return starts[which] + np.minimum((inside * rows[which]).astype(np.int64), rows[which] - 1)

    def _drifted(self, table: int, places: Ids, changes: int) -> Ids:
        num_classes, rows = max(1, round(1 / self.drift_share)), self.tables[table]
        rounds, changed = divmod(changes, num_classes)
        which, inside = places % num_classes, places // num_classes
        moved = places.copy()
        for times, of_times in ((rounds + 1, which < changed), (rounds, which >= changed)):
            for size in {rows // num_classes, -(-rows // num_classes)}:
                mine = np.flatnonzero(of_times & ((rows - which + num_classes - 1) // num_classes == size))
                if times and size and mine.size:
                    permuted = Permutation(size, self._key(table, 4 + times))(inside[mine])
                    moved[mine] = permuted * num_classes + which[mine]
        return moved

    @cached_property
    def _permutations(self) -> list[Permutation]:
        return [Permutation(rows, self._key(t, 1)) for t, rows in enumerate(self.tables)]

    @cached_property
    def _laws(self) -> tuple[RowFrequencies, ...]:
        return Frequencies.zipf(self.tables, self.exponents, shift=self.plateau).tables

    @cached_property
    def _sums(self) -> list[tuple[Floats, Ids, Ids]]:
        """Per table: shares of lookups before each bin (bins + 1,), rows (bins,), first place (bins,)."""
        found: list[tuple[Floats, Ids, Ids]] = []
        for law in self._laws:
            p, rows = law.bins
            whole = rows.astype(np.int64)
            found.append((np.concatenate([[0.0], np.cumsum(p * rows)]), whole, np.cumsum(whole) - whole))
        return found

    @cached_property
    def _effects(self) -> list[int]:
        return [self._key(t, 2) for t in range(len(self.num_rows))]

    @property
    def _bag_sizes(self) -> tuple[int, ...]:
        return per_table(self.bag_sizes, len(self.num_rows), "bag sizes")

    def _key(self, table: int, purpose: int) -> int:
        """Return a key for the hashes, different for each table and purpose."""
        mixed = hashed(np.array([self.seed, table, purpose], dtype=np.int64), 77)
        return int(hashed((mixed * np.array([1, 3, 5], np.uint64)).sum(keepdims=True).view(np.int64))[0])


def _parts(num: int, most: int) -> list[int]:
    return [min(most, num - first) for first in range(0, num, most)]
