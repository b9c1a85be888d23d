"""Step times in the cells of a grid: arms are made once and live on, while the network changes beneath them."""

import statistics
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch.distributed as dist

from pliant_bench.harness.arms import Arm
from pliant_bench.harness.emit import emit
from pliant_bench.harness.exchange_period import steps_of_a_turn, uncounted_steps
from pliant_bench.harness.learners import Learner, timed_learner
from pliant_bench.harness.rank_speed import RankSpeed, speed_of
from pliant_bench.harness.setup import OPEN, Cell, Setup
from pliant_bench.harness.stages import NetworkRequests
from pliant_bench.harness.wire import busiest, formula_bytes

__all__ = ["Turns", "computing_s", "measure_cells", "ready_arm", "take_turns"]

_WARM_UP_STEPS = 3
_ALONE_STEPS = 10


def measure_cells(setup: Setup, folder: Path) -> None:
    """Measure all cells, and say after each what came out. Collective."""
    network = NetworkRequests(folder)
    for model_name, cells in groupby(setup.cells, key=lambda cell: cell.model):
        learner = timed_learner(model_name, setup)
        network.wait_for(OPEN)
        arms, alone_s = _ready(model_name, learner, setup)
        for cell in cells:
            network.wait_for(setup.cells.index(cell))
            _measure(cell, arms, learner, setup, speed_of(cell.slow_share, alone_s))
        for arm in arms:
            arm.close()


def _ready(model_name: str, learner: Learner, setup: Setup) -> tuple[list[Arm], float]:
    """Make and warm up all arms, while nothing limits the network; time a step of computing alone."""
    arms: list[Arm] = []
    for name in setup.arms:
        arms.append(ready_arm(name, learner))
        emit("note", {"text": f"{model_name}: {name} is ready"})
    return arms, computing_s(next(arm for arm in arms if arm.name == "compute"), learner)


def ready_arm(name: str, learner: Learner) -> Arm:
    """Return a new arm that has warmed up, with nothing on its way. Collective."""
    # Algorithms warm up for a fifth of the training that they are told of.
    arm = learner.arm(name, 0, 5 * _WARM_UP_STEPS)
    for _ in range(_WARM_UP_STEPS + 1):
        _step(arm, learner, RankSpeed())
    arm.settle()
    return arm


def computing_s(alone: Arm, learner: Learner) -> float:
    """Time steps of the arm without communication; return the longest median of all ranks. Collective."""
    dist.barrier()
    took_s: list[float] = []
    for _ in range(_ALONE_STEPS):
        start_s = time.perf_counter()
        _step(alone, learner, RankSpeed())
        took_s.append(time.perf_counter() - start_s)
    return busiest([statistics.median(took_s)])[0]


def _measure(cell: Cell, arms: Sequence[Arm], learner: Learner, setup: Setup, speed: RankSpeed) -> None:
    turns = [Turns(arm, learner, speed) for arm in arms]
    took_s = take_turns(turns, setup)
    emit("cell", {**_name_cell(cell), "took_s": took_s, "arms": {each.arm.name: each.found() for each in turns}})


def take_turns(turns: "Sequence[Turns]", setup: Setup) -> float:
    """Let arms take turns for as many rounds as the setup allows; return the seconds that they took. Collective."""
    start_s, elapsed_s = time.perf_counter(), 0.0
    for turn in range(setup.rounds):
        for each in turns if turn % 2 == 0 else reversed(turns):  # A B B A: nobody profits from its place
            each.take()
        (elapsed_s,) = busiest([time.perf_counter() - start_s])
        if elapsed_s * (turn + 2) / (turn + 1) > setup.cell_seconds:
            break
    return elapsed_s


def _name_cell(cell: Cell) -> dict[str, str | float]:
    return {"model": cell.model, "rate": cell.rate, "delay": cell.delay, "slow_share": cell.slow_share}


class Turns:
    """Turns of one arm in one cell.

    A turn is timed by each rank from the end of a step that is not counted to the end of its own last step, without a
    barrier in between. So as much is in flight at the start as at the end, and idle connections have started again.
    """

    def __init__(self, arm: Arm, learner: Learner, speed: RankSpeed) -> None:
        self.arm = arm
        self._learner, self._speed = learner, speed
        self._num_steps = self._own_steps = 0
        self._step_s: list[float] = []
        self._sent_bytes: list[float] = []
        self._exposed_s: list[float] = []

    def take(self) -> None:
        """Take a turn. Collective."""
        arm = self.arm
        dist.barrier()
        start_s = 0.0
        for _ in range(uncounted_steps(arm)):
            start_s = time.perf_counter()
            self._step()
        if not self._num_steps:
            self._num_steps = steps_of_a_turn(arm, *busiest([time.perf_counter() - start_s]))
            self._own_steps = self._speed.own_steps(self._num_steps, unbounded=arm.unbounded)
        sent_before, exposed_before, start_s = arm.sent_bytes(), arm.exposed_s(), time.perf_counter()
        for _ in range(self._own_steps):
            self._step()
        own_s = time.perf_counter() - start_s
        sent, exposed_s = arm.sent_bytes(), arm.exposed_s()
        if sent is not None and sent_before is not None and exposed_s is not None and exposed_before is not None:
            self._sent_bytes.append((sent - sent_before) / self._own_steps)
            self._exposed_s.append((exposed_s - exposed_before) / self._own_steps)
        arm.settle()
        dist.barrier()
        self._step_s.append(self._speed.step_s(self._own_steps, own_s, unbounded=arm.unbounded))

    def found(self) -> dict[str, object]:
        """Return what came out. Collective."""
        counted = bool(self._sent_bytes)
        own = statistics.median(self._sent_bytes) if counted else formula_bytes(self.arm)
        return {
            "step_s": self._step_s,
            "num_steps": self._num_steps,
            "sent_bytes": busiest([own])[0],
            "counted": counted,
            "exposed_s": statistics.median(self._exposed_s) if counted else None,
            "free": self.arm.free,
        }

    def _step(self) -> None:
        _step(self.arm, self._learner, self._speed)


def _step(arm: Arm, learner: Learner, speed: RankSpeed) -> None:
    arm.optimizer.zero_grad()
    loss = learner.loss(arm, 0, arm.steps_made)
    speed.pause()
    loss.backward()
    arm.optimizer.step()
    arm.steps_made += 1
