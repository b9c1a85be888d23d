"""Graphs for gossip, as doubly stochastic mixing matrices that may change from step to step."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pliant.spec.ranges import Tried, check_ranges

__all__ = ["Graph", "Row"]

Row = dict[int, float]
"""Rank -> weight, of what one rank mixes; itself included, zeros left out."""

_Kind = Literal["ring", "complete", "exponential", "grid", "one_peer", "hypercube", "round_robin", "matching", "matrix"]
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Graph of a gossip: a mixing matrix W over n ranks for each step, x_i <- sum_j W_ij x_j.

    Rows and columns of W sum to 1, so the mean over ranks stays. `ring`: both neighbours, a third each. `complete`:
    everybody. `exponential`: ranks i + 1, 2, 4, ... `grid`: up to four neighbours in the squarest grid, Metropolis
    weights. One partner a step, half and half: `one_peer`: rank i + 2^t (Ying et al., arXiv:2110.13363: for n = 2^k
    exact after k steps), `hypercube`: rank i xor 2^t, `round_robin`: every pair once in a round, `matching`: pairs at
    random. A rank without a partner keeps its own weights. `matrix`: W as given.

    >>> Graph(kind="ring").mixing(step=0, size=4)[0] == {0: 1 / 3, 1: 1 / 3, 3: 1 / 3}
    True
    """

    kind: Annotated[_Kind, Tried(("exponential", "one_peer", "ring"))] = "ring"
    seed: int = 0
    """Seed of the random pairs of `matching`."""
    rows: tuple[tuple[float, ...], ...] = ()
    """Rows of W, for `matrix`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.kind == "matrix") != bool(self.rows):
            raise ValueError(f"a graph of kind {self.kind!r} has {len(self.rows)} rows; rows are for 'matrix' alone.")
        for name, lines in (("row", self.rows), ("column", tuple(zip(*self.rows, strict=False)))):
            for k, line in enumerate(lines):
                if len(line) != len(self.rows) or min(line) < 0 or abs(sum(line) - 1) > _TOLERANCE:
                    raise ValueError(
                        f"{name} {k} of the mixing matrix is {line}, but the matrix must be square, and each row and "
                        "column must hold weights of at least 0 that sum to 1, or the mean would drift."
                    )

    def period(self, size: int) -> int:
        """Return after how many steps the matrices repeat; 0 if they do not."""
        if self.kind == "matching":
            return 0
        if self.kind in ("one_peer", "hypercube"):
            return max(1, math.ceil(math.log2(size)))
        return max(1, size - 1 + size % 2) if self.kind == "round_robin" else 1

    def mixing(self, step: int, size: int) -> list[Row]:
        """Return the rows of W in this step, one per rank.

        Raises:
            ValueError: The matrix was given for another number of ranks.

        """
        if self.kind == "matrix":
            if len(self.rows) != size:
                raise ValueError(f"the mixing matrix is for {len(self.rows)} ranks, but there are {size}.")
            return [{j: w for j, w in enumerate(row) if w} for row in self.rows]
        if self.kind == "grid":
            return _metropolis([_grid_neighbours(i, size) for i in range(size)])
        offsets = self.offsets(step, size)
        if offsets is None:
            partner = dict(self._pairs(step, size))
            partner |= {b: a for a, b in partner.items()}
            return [{i: 0.5, partner[i]: 0.5} if i in partner else {i: 1.0} for i in range(size)]
        weight = 1 / (1 + len(offsets))
        return [{i: weight} | {(i + d) % size: weight for d in offsets} for i in range(size)]

    @property
    def joins_all(self) -> bool:
        """Whether each two ranks exchange in some step."""
        return self.kind in ("matching", "round_robin", "complete")

    def neighbours(self, size: int) -> list[set[int]]:
        """Return, for each rank, the others that it exchanges with in any step, in either direction."""
        if self.joins_all:
            return [set(range(size)) - {i} for i in range(size)]
        found: list[set[int]] = [set() for _ in range(size)]
        for step in range(self.period(size)):
            for i, row in enumerate(self.mixing(step, size)):
                for j in row.keys() - {i}:
                    found[i].add(j)
                    found[j].add(i)
        return found

    def offsets(self, step: int, size: int) -> list[int] | None:
        """Return how far from a rank its sources are, or None if that is not the same for all ranks."""
        powers = [1 << k for k in range(max(0, math.ceil(math.log2(size))))]
        all_offsets = {
            "ring": sorted({1 % size, -1 % size} - {0}),
            "complete": list(range(1, size)),
            "exponential": powers,
            "one_peer": powers[step % len(powers) :][:1] if powers else [],
        }
        return all_offsets.get(self.kind)

    def _pairs(self, step: int, size: int) -> Iterator[tuple[int, int]]:
        if self.kind == "hypercube":
            bit = 1 << step % self.period(size)
            yield from ((i, i ^ bit) for i in range(size) if i < i ^ bit < size)
        elif self.kind == "matching":
            ranks = list(range(size))
            random.Random(f"{self.seed} {step}").shuffle(ranks)  # noqa: S311  alike on all ranks, not a secret
            yield from zip(ranks[::2], ranks[1::2], strict=False)
        else:  # the circle method: the last seat stays, the others move on; for an odd number that seat is empty
            others = size - 1 + size % 2
            turn = step % max(1, others)
            yield from ((turn, others) for _ in range(size - others) if others)
            for k in range(1, (others + 1) // 2):
                yield (turn + k) % others, (turn - k) % others


def _grid_neighbours(rank: int, size: int) -> list[int]:
    """Return the ranks beside this one in the squarest full grid, row by row."""
    columns = next(c for c in range(math.isqrt(size), 0, -1) if size % c == 0)
    row, column = divmod(rank, columns)
    beside = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return [r * columns + c for r, c in beside if 0 <= r < size // columns and 0 <= c < columns]


def _metropolis(neighbours: list[list[int]]) -> list[Row]:
    """Return W_ij = 1 / (1 + max(degree_i, degree_j)), the rest on the diagonal (Xiao and Boyd 2004)."""
    rows = [{j: 1 / (1 + max(len(js), len(neighbours[j]))) for j in js} for js in neighbours]
    return [{i: 1 - sum(row.values())} | row for i, row in enumerate(rows)]
