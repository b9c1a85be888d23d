"""Sums of vectors of which every rank has other blocks, by a schedule made for what they have."""

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pliant.accelerator import synchronize
from pliant.comm.agreement import require_same
from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.netmodel import Overheads
from pliant.schedules.background import BackgroundSolver, SolverOptions
from pliant.schedules.collective import Collective
from pliant.schedules.cost import predict_cost
from pliant.schedules.execute import ScheduledAllReduce
from pliant.schedules.select import Candidate, ScheduleSelector, SelectedSchedule, SelectorOptions
from pliant.schedules.verify import ScheduleError
from pliant.spec import Topology, from_json, to_json

__all__ = ["SparseAllReduce"]

_NUM_CACHED = 8
_DECISIONS = ("stay", "change", "back")


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """Parts that carry out the sum of one set of blocks."""

    collective: Collective
    planned: SelectedSchedule
    carry_out: ScheduledAllReduce


class SparseAllReduce:
    """Sum over ranks of the blocks that each rank has selected, on all ranks.

    Phases: all-gather of the bitmaps, a bit for each block; every rank selects the same schedule (`ScheduleSelector`),
    which, if it is new, is verified and compared, and carried out (`ScheduledAllReduce`). Bytes beside the schedule's:
    (size - 1) (blocks/8 + 8) in and out. When it is made, all ranks compare their arguments.

    With `solver`, rank 0 runs a background solver where blocks stay the same. Its decision is sent with the bitmaps,
    in a byte more, so all change in the same call: to the schedule that it then broadcasts, which is verified and
    compared like any other; and back, if that is measured to be slower.

    Args:
        numels: Elements of each block, in the order in which they lie in the vector.
        topology: The same on all ranks.
        comm: Ranks that take part; best one of its own, as `new_comm` makes.
        like: A vector of the same dtype and device.
        gather: Comm of the same ranks that gathers bitmaps, such as one that does it in few rounds; else `comm` does.
        overheads: Overheads beside the topology's.
        options: Settings of the selection.
        solver: Settings of the background solver; None for none.

    Raises:
        ScheduleError: The ranks were given different things.

    """

    def __init__(
        self,
        numels: Sequence[int],
        topology: Topology,
        comm: Comm,
        *,
        like: Tensor,
        gather: Comm | None = None,
        overheads: Overheads | None = None,
        options: SelectorOptions | None = None,
        solver: SolverOptions | None = None,
    ) -> None:
        self._numels, self._topology, self._comm, self._like = tuple(numels), topology, comm, like
        self._gather, self._ended_s = gather or comm, time.perf_counter()
        self._block_bytes = [numel * like.element_size() for numel in numels]
        self._selector = ScheduleSelector(topology, overheads, options)
        self._ready: OrderedDict[bytes, _Ready] = OrderedDict()
        self._before: tuple[bytes, _Ready] | None = None
        """Schedule before the solver's, while that is on trial."""
        told = f"{to_json(topology)} {self._numels} {overheads} {options} {solver} {like.dtype}"
        what = "the topology, the blocks or the settings of a sparse sum"
        require_same(comm, what, told, like.device, error=ScheduleError)
        self._options = solver is not None
        self._background: BackgroundSolver | None = None
        if solver is not None:
            self._background = BackgroundSolver(solver, topology, self._selector.overheads) if comm.rank == 0 else None

    def __call__(self, x: Tensor, held: Sequence[bool]) -> SelectedSchedule:
        """Replace x, (numel,), by the sum over ranks of the blocks that each holds; return the schedule that was used.

        Args:
            x: Vector; its content in blocks that this rank does not hold is ignored, and 0 where no rank holds them.
            held: For each block, whether this rank holds it.

        """
        decision, blocks = self._exchange(np.asarray(held, dtype=bool))
        if decision != "stay":
            self._change(decision)
        if blocks not in self._ready:
            self._keep(blocks, self._plan(blocks))
        self._ready.move_to_end(blocks)
        ready = self._ready[blocks]
        if self._background is None:
            ready.carry_out(x)
        else:
            pause_s = time.perf_counter() - self._ended_s
            seconds = self._run_timed(ready, x)
            self._ended_s = time.perf_counter()
            self._background.note_call(
                blocks, ready.collective, partial(self._predicted_s, ready), seconds, pause_s=pause_s
            )
        return ready.planned

    def close(self) -> None:
        """End the background solver, if it runs."""
        if self._background is not None:
            self._background.close()

    def _exchange(self, held: np.ndarray) -> tuple[str, bytes]:
        """Return rank 0's decision, and the bitmaps as gathered: whole bytes of bits for each rank."""
        if held.shape != (len(self._numels),):
            raise ValueError(
                f"there are {len(self._numels)} blocks, but it is said of {held.shape} whether they are held."
            )
        decision = self._background.decide() if self._background is not None else "stay"
        word = [_DECISIONS.index(decision)] if self._options else []
        mine = torch.from_numpy(np.append(np.packbits(held), np.array(word, dtype=np.uint8))).to(self._like.device)
        everybody = torch.empty(self._comm.size * mine.numel(), dtype=torch.uint8, device=self._like.device)
        self._gather.all_gather(everybody, mine).wait()
        rows = everybody.cpu().numpy().reshape(self._comm.size, -1)
        if not self._options:
            return "stay", rows.tobytes()
        return _DECISIONS[rows[0, -1]], rows[:, :-1].tobytes()

    def _plan(self, blocks: bytes) -> _Ready:
        collective = self._collective(blocks)
        planned = self._selector.choose(collective)
        # Compared with the others even so: a machine that rounds another way might have chosen another one.
        return self._prepare(planned, collective)

    def _prepare(self, planned: SelectedSchedule, collective: Collective) -> _Ready:
        best = planned.best
        carry_out = ScheduledAllReduce(
            best.schedule, best.merged, collective, self._numels, self._comm, like=self._like
        )
        return _Ready(collective=collective, planned=planned, carry_out=carry_out)

    def _collective(self, blocks: bytes) -> Collective:
        rows = np.frombuffer(blocks, dtype=np.uint8).reshape(self._comm.size, -1)
        bitmap = np.unpackbits(rows, axis=1, count=len(self._numels)).astype(bool)
        return Collective.of(bitmap, self._block_bytes)

    def _keep(self, blocks: bytes, ready: _Ready) -> None:
        self._ready[blocks] = ready
        if len(self._ready) > _NUM_CACHED:
            self._ready.popitem(last=False)

    def _predicted_s(self, ready: _Ready, overheads: Overheads) -> float:
        best = ready.planned.best
        return predict_cost(best.schedule, best.merged.collective, self._topology, overheads).total_s

    def _run_timed(self, ready: _Ready, x: Tensor) -> float:
        start_s = time.perf_counter()
        ready.carry_out(x)
        synchronize(x.device)
        return time.perf_counter() - start_s

    def _change(self, decision: str) -> None:
        """Use the solver's schedule that rank 0 announces, or return to the one before."""
        if decision == "back" and self._before is not None:
            self._keep(*self._before)
        if decision != "change":
            return
        text = ""
        if self._background is not None:
            blocks, found = self._background.found()
            text = json.dumps([blocks.hex(), to_json(found)])
        held, found = json.loads(broadcast_text(text, self._comm, device=self._like.device))
        blocks, better = bytes.fromhex(held), from_json(Candidate, found)
        old = self._ready[blocks] if blocks in self._ready else self._plan(blocks)
        self._before = blocks, old
        self._keep(blocks, self._prepare(replace(old.planned, best=better), old.collective))
