"""Ratio controller: measures the exchanges of a run, and sets the ratio of its sparsifiers to meet a target."""

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.algorithms.base import RatioSetting
from pliant.algorithms.control import ControlSample, RatioPolicy, SelectionIntervalPolicy
from pliant.algorithms.link_fit import AlphaBetaFit
from pliant.comm.base import Comm
from pliant.comm.hierarchical import levels_of
from pliant.comm.recorded import RecordedComm
from pliant.engine.comm_thread import CommThread
from pliant.engine.comms import Comms
from pliant.engine.parts import Part
from pliant.engine.same_structure import require_same_structure
from pliant.engine.tracer import Tracer
from pliant.spec import Exchange, Target

__all__ = ["RatioController", "controllers_for", "require_timed_targets"]

_TIMES = ("exposed_s", "exposed_share")
"""Targets that are met by the host's clock."""
_WINDOW = 4
"""Exchanges between two decisions: the median of four tolerates a step that had to wait for a core."""


class RatioController(Part):
    """Measures each step's exchange, and sets the same ratio on all ranks after every fourth.

    The training thread reports the exposed time of each step. Everything else happens in the communication thread, in
    its order, so that a decision holds from the same exchange on all ranks. A decision costs one all-reduce of nine
    numbers in float64, which is itself left out of what is measured.

    The exposed time that counts is that of the rank that waits least: the others have waited for a rank, not for the
    network. For bytes, selection and steps the largest counts.

    Where hosts are summed first, the ratio is that between hosts (or racks); links inside hosts have their own fit.

    Args:
        target: Target to meet.
        ratio: The plan's own.
        tracer: Tracer of the run, with its waiting time and its comm.
        comm_thread: Communication thread of the gradients.
        levels: Comm of each level, from the inside out; the last is that of the ratio. None where this rank takes no
            part.
        begins: Whether the run begins now: the cost of its start is then taken from the counters before it trains.

    """

    key = "governor"
    keeps_from_joining = "this plan lets ranks measure together after steps"

    def __init__(
        self,
        target: Target,
        ratio: float,
        tracer: Tracer,
        comm_thread: CommThread,
        levels: Sequence[RecordedComm | None],
        *,
        begins: bool,
    ) -> None:
        self.target = target
        self.ratio_setting = RatioSetting()
        self.control = RatioPolicy(target, ratio)
        self.effort = SelectionIntervalPolicy(target.effort)
        self.inside = AlphaBetaFit()
        """Fit of the links inside hosts."""
        self._plan_ratio = ratio
        self._tracer, self._comm_thread, self._levels = tracer, comm_thread, levels
        self._exposed_before_s = tracer.exposed_s
        self._step_from_s = time.perf_counter()
        self._before: list[float] | None = [0.0] * (3 * len(levels) + 2) if begins else None
        """Counters at the end of the last step; None before the first."""
        self._rows: list[list[float]] = []
        """Rows of the exchanges since the last decision: counters, seconds exposed, seconds of the step."""
        self._width = 3 * len(levels) + 4

    def stats(self) -> dict[str, float]:
        """Return the ratio of the last decision."""
        return {"ratio": self.ratio_setting.ratio}

    def check_state(self, saved: Tensor, step: int) -> None:
        """Raise ValueError for a state of another target."""
        require_same_structure(saved, self.state, "governor")

    def after_step(self, step: int) -> None:
        """Report the exposed time of the step that has just ended. Runs in the training thread."""
        now_s, exposed_s = time.perf_counter(), self._tracer.exposed_s
        step_s, self._step_from_s = now_s - self._step_from_s, now_s
        mine_s, self._exposed_before_s = exposed_s - self._exposed_before_s, exposed_s
        self._comm_thread.submit(lambda: self._note(mine_s, step_s))

    def belongs_to(self, target: Target, ratio: float) -> bool:
        """Say whether it may continue under another plan."""
        return (self.target, self._plan_ratio) == (target, ratio)

    @property
    def state(self) -> Tensor:
        """Fits and decisions so far, float64 (numbers,)."""
        learned = [*self.effort.state(), *self.inside.state(), *self.control.state()]
        rows = [*self._rows, *[[math.nan] * self._width] * (_WINDOW - len(self._rows))]
        numbers = [
            self.ratio_setting.ratio,
            self.ratio_setting.used,
            *learned,
            *(number for row in rows for number in row),
        ]
        return torch.tensor(numbers, dtype=torch.float64)

    @state.setter
    def state(self, saved: Tensor) -> None:
        numbers = cast(list[float], saved.tolist())
        self.ratio_setting.ratio, self.ratio_setting.used = numbers[:2]
        parts = (len(self.effort.state()), len(self.inside.state()), len(self.control.state()))
        a, b, c = (2 + sum(parts[: k + 1]) for k in range(3))
        self.effort.restore(numbers[2:a])
        self.inside.load(numbers[a:b])
        self.control.restore(numbers[b:c])
        self.ratio_setting.reuse = self.effort.reuse
        rows = [numbers[k : k + self._width] for k in range(c, len(numbers), self._width)]
        self._rows = [row for row in rows if not math.isnan(row[0])]

    # - In the communication thread

    def _counters(self, busy_s: float) -> list[float]:
        """Bytes out, communications and waiting at each level, then all waiting, and the work of the thread."""
        numbers: list[float] = []
        for comm in self._levels:
            numbers += [0.0, 0.0, 0.0] if comm is None else [comm.sent_bytes, comm.num_begun, comm.wait_s]
        return [*numbers, self._tracer.comm.wait_s, busy_s]

    def _note(self, exposed_s: float, step_s: float) -> None:
        now = self._counters(self._comm_thread.busy_s)
        before, self._before = self._before, now
        if before is None:
            return
        row = [a - b for a, b in zip(now, before, strict=True)]
        messages = sum(row[1 : 3 * len(self._levels) : 3])
        if not messages:  # nothing was exchanged in this step, as under every()
            return
        self._rows.append([*row, exposed_s, step_s])
        if len(self._rows) == _WINDOW:
            self._decide()
            self._before = self._counters(self._comm_thread.busy_s)

    def _decide(self) -> None:
        *levels, waited_s, busy_s, exposed_s, step_s = (statistics.median(c) for c in zip(*self._rows, strict=True))
        self._rows.clear()
        mine: list[float] = []
        for k, comm in enumerate(self._levels):
            num_bytes, messages, wire_s = levels[3 * k : 3 * k + 3]
            mine += [num_bytes, messages, -float("inf") if comm is None else -wire_s]
        mine += [
            -exposed_s,
            step_s,
            max(0.0, busy_s - waited_s),
            self.ratio_setting.pop_dropped_share(),
            self.ratio_setting.used,
        ]
        comm = self._tracer.comm
        shared = torch.tensor(mine, dtype=torch.float64)
        comm.all_reduce(shared, "max").wait()
        *levels, less_exposed_s, step_s, select_s, left, used = cast(list[float], shared.tolist())
        if len(self._levels) > 1 and levels[2] < 0 and levels[1] > 0:
            self.inside.add(levels[1], levels[0], -levels[2])
        num_bytes, messages, less_wire_s = levels[-3:]
        seen = ControlSample(
            steps=_WINDOW,
            ratio=used or self._plan_ratio,
            messages=messages,
            num_bytes=num_bytes,
            wire_s=-less_wire_s,
            exposed_s=-less_exposed_s,
            step_s=step_s,
            left=left,
            select_s=select_s,
        )
        self.ratio_setting.ratio = self.control.decide(seen)
        self.ratio_setting.reuse = self.effort.decide(seen)


def controllers_for(
    nodes: Mapping[str, Exchange],
    comms: Comms,
    tracer: Tracer,
    comm_thread: CommThread,
    old: Sequence[RatioController],
    *,
    begins: bool,
) -> list[RatioController]:
    """Return the controller of these nodes' target: the earlier one, if it has the same; none without a target."""
    held = next((node for node in nodes.values() if node.ratio_target is not None), None)
    if held is None or (target := held.ratio_target) is None or held.ratio is None or tracer.comm.size == 1:
        return []
    if same := [each for each in old if each.belongs_to(target, held.ratio)]:
        return same
    levels: list[RecordedComm | None] = []
    last: Comm | None = comms.of(held) if held.levels else tracer.comm
    for _ in held.levels:
        levels.append(None if last is None else cast(RecordedComm, levels_of(last).inner))
        last = None if last is None else levels_of(last).leaders
    levels.append(cast("RecordedComm | None", last))
    return [RatioController(target, held.ratio, tracer, comm_thread, levels, begins=begins)]


def require_timed_targets(nodes: Iterable[Exchange], tracer: Tracer) -> None:
    """Raise ValueError for a target in seconds on an accelerator, where the host's clock does not see exchanges."""
    timed = [node.ratio_target.of for node in nodes if node.ratio_target and node.ratio_target.of in _TIMES]
    if timed and is_accelerator(tracer.device) and tracer.comm.size > 1:
        raise ValueError(
            f"the plan holds {timed[0]}, but the model is on {tracer.device}, where the time that streams wait for "
            "each other is not on the host's clock; hold bytes_per_step or bytes_per_s instead."
        )
