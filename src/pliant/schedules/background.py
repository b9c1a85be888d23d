"""Background solver: integer programs that rank 0 runs beside training, and the decision to use their results."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Literal

from pliant.netmodel import Overheads
from pliant.schedules.collective import Collective, merge_blocks
from pliant.schedules.dense import dense_candidates
from pliant.schedules.owned import owner_candidates
from pliant.schedules.refine import improve_owners, improve_rounds
from pliant.schedules.select import Candidate, candidates
from pliant.spec import Topology, from_json, to_json

__all__ = ["BackgroundSolver", "SolverJob", "SolverOptions", "SolverProcess", "main"]

_NUM_WATCHED = 64
"""Sets of blocks that are remembered, since they may be others in each call; of dense sums there are only so many kinds
as a model has buckets, and none is forgotten, or those that come in turn would never be searched for."""
_SLACK_S = 120.0
"""Beyond the programs' limits, for what is done before and after them; then the process ends itself."""


@dataclass(frozen=True, kw_only=True)
class SolverOptions:
    """Settings of the background solver: when it starts, and when its result is dropped again."""

    after: int = 16
    """Calls with the same blocks before it starts: blocks that change in each call leave no time for it."""
    limit_s: float = 20.0
    """Time limit of the programs together, in seconds."""
    trials: int = 5
    """Calls before and after the change whose medians are compared."""

    def __post_init__(self) -> None:
        if self.trials < 1 or self.after < self.trials or self.limit_s <= 0:
            raise ValueError(f"{self} cannot be: use at least 1 trial, as many calls before, and a limit above 0 s.")


@dataclass(frozen=True, kw_only=True)
class SolverJob:
    """Input of the solver's process."""

    collective: Collective
    topology: Topology
    overheads: Overheads
    limit_s: float
    is_dense: bool = False
    """Whether blocks may be cut anywhere: all of one vector, or parts of it, each with an owner."""

    def solve(self) -> Candidate:
        """Return the best that the programs whose solvers are installed find; the family's best if nothing."""
        if self.is_dense:
            return self._solve_dense()
        best = candidates(merge_blocks(self.collective), self.topology, self.overheads)[0]
        limit_s = self.limit_s / 2
        found = [best, improve_owners(best, self.topology, self.overheads, limit_s=limit_s)]
        if find_spec("ortools") is not None:
            with suppress(ValueError):  # too large, even over few super-blocks
                found.append(improve_rounds(best, self.collective, self.topology, self.overheads, limit_s=limit_s))
        return min(found, key=lambda each: each.cost.total_s)

    def _solve_dense(self) -> Candidate:
        task, topology, overheads, limit_s = self.collective, self.topology, self.overheads, self.limit_s
        if task.dense_bytes:
            return dense_candidates(task.dense_bytes, topology, overheads, limit_s=limit_s)[0]
        to_bytes, from_bytes = [0] * task.num_ranks, [0] * task.num_ranks
        for held, needed, num_bytes in zip(task.holders, task.needers, task.block_bytes, strict=True):
            if len(needed) == 1:
                to_bytes[needed[0]] = num_bytes
            else:
                from_bytes[held[0]] = num_bytes
        return owner_candidates(to_bytes, from_bytes, topology, overheads, limit_s=limit_s)[0]


class SolverProcess:
    """Process of the background solver, which uses spare cores and ends with the training."""

    def __init__(self, task: SolverJob) -> None:
        # Files, not pipes: nobody has to read while it writes.
        with tempfile.TemporaryFile() as told:
            told.write(to_json(task).encode())
            told.seek(0)
            self._said, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  see close
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=told, stdout=self._said, stderr=self._errors
            )

    def has_ended(self) -> bool:
        """Say whether there is a result."""
        return self._process.poll() is not None

    def result(self) -> Candidate:
        """Return what was found, and close. Raises RuntimeError, with its last words, if the process failed."""
        code = self._process.wait()
        self._said.seek(0)
        self._errors.seek(0)
        said, words = self._said.read().decode(), self._errors.read().decode().strip().splitlines()
        self.close()
        if code != 0:
            raise RuntimeError(
                f"the search for a better schedule ended with {code}: {words[-1] if words else 'it said nothing'}; "
                "mend what it says, or let nobody search."
            )
        return from_json(Candidate, said)

    def close(self) -> None:
        """End the process, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._said.close()
        self._errors.close()


@dataclass(kw_only=True)
class _Watched:
    """Calls with the same blocks."""

    seconds: list[float] = field(default_factory=list[float])
    """Seconds of each call, until there are enough."""
    pauses_s: list[float] = field(default_factory=list[float])
    """Time before each of them in which no sum was under way."""
    searched: bool = False


class BackgroundSolver:
    """Record of one sum's calls on rank 0, which announces a change before a call, so that all make it then.

    One search at a time, once for each set of blocks. Its result is used when it is predicted to be faster than the
    schedule in use. It is dropped again when the median of its first calls is slower than that of the last calls before
    the search, which did not run beside it.
    """

    def __init__(self, solver: SolverOptions, topology: Topology, overheads: Overheads) -> None:
        self._options, self._topology, self._overheads = solver, topology, overheads
        self._watched: OrderedDict[bytes, _Watched] = OrderedDict()
        self._search: SolverProcess | None = None
        self._blocks = b""
        """Those that a search or a trial is about."""
        self._predicted_s = self._before_s = 0.0
        """Predicted seconds of the schedule in use for them."""
        self._found: Candidate | None = None
        """On trial."""
        self._trial_s: list[float] = []
        self._missed = 0
        """Calls with blocks that wait for a search since the last one on trial."""

    def decide(self) -> Literal["stay", "change", "back"]:
        """Return what all are to do before the next sum, with the schedule that `found` returns.

        A search that fails is warned of, and changes nothing: others wait for this rank's word.
        """
        if self._search is not None and self._search.has_ended():
            search, self._search = self._search, None
            try:
                found = search.result()
            except RuntimeError as error:  # no reason to end a training that goes on without
                warnings.warn(f"no schedule was found, and sums go on as they are: {error}", stacklevel=2)
                return "stay"
            if found.cost.total_s < self._predicted_s:
                self._found = found
                return "change"
        elif len(self._trial_s) >= self._options.trials:
            return self._end_trial("back" if statistics.median(self._trial_s) > self._before_s else "stay")
        elif self._missed > self._options.after * len(self._watched):
            return self._end_trial("back")  # blocks that come no more would hold up the search for others for ever
        return "stay"

    def _end_trial(self, decision: Literal["stay", "back"]) -> Literal["stay", "back"]:
        self._found, self._missed = None, 0
        self._trial_s.clear()
        return decision

    def found(self) -> tuple[bytes, Candidate]:
        """Return the blocks, and what they change to."""
        if self._found is None:
            raise RuntimeError("nothing was found, but it was asked for; ask only after `decide` has said 'change'.")
        return self._blocks, self._found

    def has_settled(self, sets: Iterable[bytes]) -> bool:
        """Say whether all these sets of blocks have been searched for, and no result is on trial."""
        idle, watched = self._search is None and self._found is None, self._watched
        return idle and all(blocks in watched and watched[blocks].searched for blocks in sets)

    def note_call(
        self,
        blocks: bytes,
        collective: Collective,
        predict: Callable[[Overheads], float],
        seconds: float,
        *,
        pause_s: float,
        is_dense: bool = False,
    ) -> None:
        """Record a call, and start a search if it is due: for the pause that is usual before these calls.

        Args:
            blocks: Which rank held which block.
            collective: The same as a task.
            predict: Predicts the duration of what was carried out.
            seconds: Its duration.
            pause_s: Time since the call before it, in which links were silent.
            is_dense: See `SolverJob`.

        """
        if self._found is not None and blocks == self._blocks:
            self._trial_s.append(seconds)
            self._missed = 0
            return
        watched = self._watched.setdefault(blocks, _Watched())
        self._watched.move_to_end(blocks)
        if len(self._watched) > _NUM_WATCHED and not is_dense:
            self._watched.popitem(last=False)
        if len(watched.seconds) < self._options.after:
            watched.seconds.append(seconds)
            watched.pauses_s.append(pause_s)
        elif watched.searched or self._search is not None:
            return
        elif self._found is not None:
            self._missed += 1
        else:
            watched.searched = True
            overheads = replace(self._overheads, pause_s=statistics.median(watched.pauses_s))
            self._blocks, self._predicted_s = blocks, predict(overheads)
            self._before_s = statistics.median(watched.seconds[-self._options.trials :])
            self._search = SolverProcess(
                SolverJob(
                    collective=collective,
                    topology=self._topology,
                    overheads=overheads,
                    limit_s=self._options.limit_s,
                    is_dense=is_dense,
                )
            )

    def close(self) -> None:
        """End a search that still runs."""
        if self._search is not None:
            self._search.close()
            self._search = None


def main() -> None:
    """Read a task from standard input, and write the best candidate to standard output."""
    os.nice(10)
    task = from_json(SolverJob, sys.stdin.read())
    signal.alarm(int(task.limit_s + _SLACK_S))  # whoever waits for us may be gone
    print(to_json(task.solve()))


if __name__ == "__main__":
    main()
