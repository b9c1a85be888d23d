"""Attendance in an average at a free pace: what ranks tell each other before it, and the rule of a quorum."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import torch

from pliant.comm.base import Comm
from pliant.comm.small_gather import gather_small
from pliant.engine.agreement import check_counts
from pliant.engine.rank_checks import describe_failure
from pliant.engine.step_counts import StepCounts
from pliant.spec import Exchange

__all__ = ["Attendance", "Readiness", "gather_attendance", "require_quorums", "seconds_left", "share_of"]


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """Answer of a rank to all before an average, so that all decide alike (Note [one table])."""

    weight: float
    """Weight of its change among those that count."""
    leaving: bool
    """Whether it makes no step before all have come to an end."""
    exchanges: int
    """Exchanges that it has taken part in."""
    waited_s: float
    """Seconds since its period was over; below 0 if it is not."""

    @property
    def counts(self) -> bool:
        """Whether its change is part of an average that is carried out now."""
        return self.leaving or self.waited_s >= 0


def gather_attendance(mine: Attendance, comm: Comm) -> list[Attendance]:
    """Return what all ranks tell, in their order; raise if their exchanges differ in number. Collective."""
    own = torch.tensor(astuple(mine), dtype=torch.float64)
    with describe_failure("beginning an average of weights"):
        table = gather_small(comm, own)
    rows = [
        Attendance(weight=weight, leaving=bool(leaving), exchanges=int(exchanges), waited_s=waited_s)
        for weight, leaving, exchanges, waited_s in table.tolist()
    ]
    check_counts([StepCounts(exchanges=row.exchanges).row() for row in rows])
    return rows


class Readiness:
    """Keeps since when a rank's period is over, and whether it calls for an average. The user's lock guards changes."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._call_from = -math.inf
        """Time from which a call may have another answer than the last one, though nobody else calls."""

    @property
    def waited_s(self) -> float:
        """Seconds since the period was over; below 0 if it is not."""
        since = self._since
        return -1.0 if since is None else time.perf_counter() - since

    def after_step(self, *, is_over: bool) -> bool:
        """Say whether the rank calls behind a step, after which its period is over or not."""
        now_s = time.perf_counter()
        if not is_over:
            self._since = None
        elif self._since is None:
            self._since = now_s
        return is_over and now_s >= self._call_from

    def answered(self, mine: Attendance, left_s: float) -> None:
        """Note what a call came to: a rank that counted begins a period, one that waits knows when to call again."""
        if mine.counts and left_s == 0:
            self._since = None
        self._call_from = time.perf_counter() + left_s if mine.counts else -math.inf


def seconds_left(rows: Sequence[Attendance], quorum: int, grace_s: float) -> float:
    """Return the seconds until an average is worth carrying out: 0 for now, infinity while too few ranks count.

    Note [one table]: nothing but the table decides whether an average is carried out and who counts in it. It holds
    durations and no times of day, so that ranks need no common clock. All have the same table, and so do the same.

    Args:
        rows: What all ranks tell.
        quorum: Ranks that must count.
        grace_s: Seconds for which others are waited for from then on. A rank that waits for the end ends the wait.

    """
    if all(row.counts for row in rows):
        return 0.0
    waited = sorted((math.inf if row.leaving else row.waited_s for row in rows), reverse=True)[quorum - 1]
    return max(0.0, grace_s - waited) if waited >= 0 else math.inf


def share_of(rank: int, rows: Sequence[Attendance], *, weighted: bool) -> float:
    """Return a rank's share of an average, times the number of ranks; 0 if it does not count."""
    mine, counting = rows[rank], [row for row in rows if row.counts]
    if not mine.counts:
        return 0.0
    total = sum(row.weight for row in counting)
    return len(rows) * (mine.weight / total if weighted and total > 0 else 1 / len(counting))


def require_quorums(nodes: Iterable[Exchange], num_ranks: int) -> None:
    """Raise ValueError for a quorum of more ranks than there are."""
    for node in nodes:
        quorum = node.timing.quorum or 0
        if quorum > num_ranks:
            raise ValueError(
                f"the plan averages once the periods of {quorum} ranks are over, but there are {num_ranks}, so that it "
                f"never would; set a quorum of at most {num_ranks}, or of -1 for all ranks but one."
            )
