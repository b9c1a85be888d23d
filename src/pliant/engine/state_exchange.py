"""Means of optimizer states between steps, beside the exchange of weights."""

import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import StepContext
from pliant.engine.comm_thread import CommThread
from pliant.engine.rank_checks import describe_failure
from pliant.engine.state_parts import StatePart, largest_ratios
from pliant.engine.weight_parts import BetweenSteps, largest_lr
from pliant.spec.optimizer_state import FIRST_MOMENT

__all__ = ["StateExchange"]


class StateExchange(BetweenSteps):
    """Averages states of the optimizer after the same steps of all ranks, each at once and for itself.

    DES-LOC (Iacob et al., arXiv:2505.22549), where weights, first and second moments have a period each. A
    mean is used in the step in which it is formed, also where weights are late, so that a second moment never takes a
    correction that could make it negative. It goes through the communication thread of the weights, before those that
    are due after the same step. One buffer of at most a bucket serves all states, since they come one by one.

    Args:
        parts: States that keep step.
        comm_thread: Communication thread of the weights.
        optimizer: Optimizer that keeps the states.

    """

    key = "states"

    def __init__(self, parts: Sequence[StatePart], comm_thread: CommThread, optimizer: Optimizer) -> None:
        super().__init__(())
        self._averaged, self._comm_thread = list(parts), comm_thread
        self._optimizer = weakref.ref(optimizer)

    def after_step(self, step: int) -> None:
        """Average what is due."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        lr = largest_lr(optimizer)
        due = [part for part in self._averaged if part.due(step, lr)]
        handles = [
            self._comm_thread.submit(self._task(part, optimizer, step), name=part.bucket.name, step=step - 1)
            for part in due
        ]
        for handle in handles:
            handle.wait()
        firsts = [part for part in due if part.key == FIRST_MOMENT and part.comm.size > 1]
        ratios = largest_ratios(optimizer) if firsts else {}
        for part in firsts:
            part.bound(optimizer, ratios)

    def reset_reference(self, which: Callable[[str], bool] = lambda _: True) -> None:
        """Begin from the states that there are: a mean has no reference."""

    @property
    def rounds(self) -> list[int]:
        """Means so far of each state, as all ranks count them."""
        return [part.round for part in self._averaged]

    @rounds.setter
    def rounds(self, counts: Sequence[int]) -> None:
        for part, count in zip(self._averaged, counts, strict=True):
            part.round = count

    def explain(self) -> str:
        """Say which states are averaged, how often, and how large they are."""
        sizes: dict[tuple[str, int], int] = {}
        for part in self._averaged:
            own = part.key, part.period
            sizes[own] = sizes.get(own, 0) + 4 * part.bucket.numel
        told = [f"{key} every {period} steps ({size / 1e6:.3g} MB in float32)" for (key, period), size in sizes.items()]
        return f"Optimizer states are averaged beside weights: {', '.join(told)}."

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Counters of each state, int64 (num_parts, 2): step of the last mean, means."""
        return {"counters": torch.tensor([[part.last, part.round] for part in self._averaged], dtype=torch.int64)}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        for part, (last, round_) in zip(self._averaged, saved["counters"].tolist(), strict=True):
            part.last, part.round = last, round_

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        rows = saved["counters"].tolist()
        latest = max(step, *(part.weights.until_step for part in self._averaged))
        if any(last > latest or round_ < 0 for last, round_ in rows):
            raise ValueError(f"the state is damaged: means of optimizer states are counted {rows} in step {step}.")

    def _task(self, part: StatePart, optimizer: Optimizer, step: int) -> Callable[[], None]:
        part.last = step

        def average() -> None:
            seed = part.round << 32 | zlib.crc32(part.bucket.name.encode())
            context = StepContext(step=step, seed=seed, round=part.round)
            part.round += 1
            if part.comm.size == 1:
                return
            part.load(optimizer, step)
            with describe_failure(f"averaging {part.bucket.name} after step {step}"):
                rest = part.algorithm.on_ready(part.bucket, part.state, part.comm, context)
            part.store(optimizer)
            if rest is not None:
                rest()

        return average
