"""One published value, and what the simulator says of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

__all__ = ["Row", "Source", "in_order", "mean_error"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One value of a source's table or figure, with all that it was measured on."""

    case: str
    """Rows of one case differ only in the arm, and may be ordered."""
    arm: str
    topology: str
    machine: str
    workload: str
    plan: str
    """Plan of Pliant that is simulated, or the arm of `arms` that stands for another system."""
    published: float
    """Value; 0 where a source gives none, and the simulator's stands alone."""
    unit: str
    uncertainty: float
    """Relative: how exactly the value can be read."""
    where: str
    """Table or figure; 'recalled' if it was not read again."""
    predict: Callable[[], float] = field(repr=False)
    base: bool = False
    """Whether the simulator's computing was taken from this value, so that it is compared in order only."""

    @cached_property
    def simulated(self) -> float:
        """Value by the simulator, in the same unit."""
        return self.predict()

    @property
    def error(self) -> float:
        """Simulated over published, less 1."""
        return self.simulated / self.published - 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """One publication: rows, origins of constants, and what is known of deviations."""

    name: str
    link: str
    rows: tuple[Row, ...]
    constants: tuple[tuple[str, str], ...]
    """(constant, where it comes from), none of them the table that it is judged by."""
    misses: tuple[str, ...] = ()
    """Sentences: where it is off, and why."""
    ceiling: float = 0.0
    """Mean error that a test holds; 0 where nothing is compared."""

    @property
    def compared(self) -> list[Row]:
        """Rows that have a published value which nothing was taken from."""
        return [row for row in self.rows if row.published and not row.base]

    @property
    def ordered(self) -> tuple[int, int]:
        """Pairs of arms in the published order, of all that differ."""
        return in_order([row for row in self.rows if row.published])


def mean_error(rows: Sequence[Row]) -> float:
    """Return the mean of the errors' sizes."""
    return sum(abs(row.error) for row in rows) / len(rows)


def in_order(rows: Sequence[Row], *, tie: float = 1.1) -> tuple[int, int]:
    """Return how many pairs of arms of one case are in the published order, of those that differ by more than 10 %."""
    pairs = [
        (a, b)
        for a, b in combinations(rows, 2)
        if a.case == b.case and max(a.published / b.published, b.published / a.published) > tie
    ]
    right = sum(bool((a.published < b.published) == (a.simulated < b.simulated)) for a, b in pairs)
    return right, len(pairs)
