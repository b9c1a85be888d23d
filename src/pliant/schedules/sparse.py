"""Sums of vectors of which every rank has other blocks, by a schedule made for what they have."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pliant.comm.base import Comm
from pliant.schedules.agreement import require_agreement
from pliant.schedules.choose import Chooser, Choosing, Planned
from pliant.schedules.collective import Collective
from pliant.schedules.cost import Overheads
from pliant.schedules.execute import ScheduledSum
from pliant.spec import Topology, to_json

__all__ = ["SparseSum"]

_NUM_CACHED = 8


class SparseSum:
    """The sums over ranks of the blocks that each rank has chosen, on all ranks.

    Phases: all-gather of who holds what, a bit for each block; every rank chooses the same schedule (`Chooser`), which,
    if it is new, is verified and compared, and carried out (`ScheduledSum`). Bytes beside the schedule's:
    (size - 1) (blocks/8 + 8) in and out. Once, when it is made, all ranks compare what they were given.

    Args:
        numels: Elements of each block, in the order in which they lie in the vector.
        topology: The same on all ranks.
        comm: Who adds up; best one of its own, as `own_group` makes.
        like: The vectors to come, for their dtype and device.
        overheads: Costs beside the topology's.
        choosing: When to look for another schedule.

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
        overheads: Overheads | None = None,
        choosing: Choosing | None = None,
    ) -> None:
        self._numels, self._comm, self._like = tuple(numels), comm, like
        self._chooser = Chooser(topology, overheads, choosing)
        self._sums: OrderedDict[bytes, tuple[Planned, ScheduledSum]] = OrderedDict()
        told = f"{to_json(topology)} {self._numels} {overheads} {choosing} {like.dtype}"
        require_agreement(told, "other topologies, blocks or settings for a sparse sum", comm, like.device)

    def __call__(self, x: Tensor, held: Sequence[bool]) -> Planned:
        """Replace x, (numel,), by the sum over ranks of the blocks that each holds; return what was carried out.

        Args:
            x: What it has in blocks that this rank does not hold is not looked at; where nobody does, it becomes 0.
            held: For each block, whether this rank holds it.

        """
        told = self._exchange(np.asarray(held, dtype=bool))
        if told not in self._sums:
            self._sums[told] = self._plan(told)
            if len(self._sums) > _NUM_CACHED:
                self._sums.popitem(last=False)
        self._sums.move_to_end(told)
        planned, carry_out = self._sums[told]
        carry_out(x)
        return planned

    def _exchange(self, held: np.ndarray) -> bytes:
        """Return who holds what, as it was gathered: a run of bits for each rank, of whole bytes."""
        if held.shape != (len(self._numels),):
            raise ValueError(
                f"there are {len(self._numels)} blocks, but it is said of {held.shape} whether they are held."
            )
        mine = torch.from_numpy(np.packbits(held)).to(self._like.device)
        everybody = torch.empty(self._comm.size * mine.numel(), dtype=torch.uint8, device=self._like.device)
        self._comm.all_gather(everybody, mine).wait()
        return everybody.cpu().numpy().tobytes()

    def _plan(self, told: bytes) -> tuple[Planned, ScheduledSum]:
        rows = np.frombuffer(told, dtype=np.uint8).reshape(self._comm.size, -1)
        bitmap = np.unpackbits(rows, axis=1, count=len(self._numels)).astype(bool)
        collective = Collective.of(bitmap, [numel * self._like.element_size() for numel in self._numels])
        planned = self._chooser.choose(collective)
        best = planned.best
        # Compared with the others even so: a machine that rounds another way might have chosen another one.
        return planned, ScheduledSum(best.schedule, best.grouped, collective, self._numels, self._comm, like=self._like)
