"""Means of optimizer states between steps, beside the exchange of weights."""

import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from pliant.algorithms.base import StepContext
from pliant.engine.comm_thread import CommThread
from pliant.engine.comms import Comms
from pliant.engine.rank_checks import describe_failure
from pliant.engine.state_parts import StatePart, largest_ratios
from pliant.engine.tracer import Tracer
from pliant.engine.weight_parts import BetweenSteps, largest_lr
from pliant.spec.optimizer_state import FIRST_MOMENT

__all__ = ["StateExchange"]


class StateExchange(BetweenSteps):
    """Averages states of the optimizer after the same steps of all ranks, each for itself.

    DES-LOC (Iacob et al., arXiv:2505.22549), where weights, first and second moments have a period each. A mean is used
    in the step in which it is formed, before weights are exchanged, also where those are late; unless its
    `OptimizerState` is late itself, and travels beside them. One buffer of at most a bucket serves all means at once,
    since they come one by one; a late one has two of its own.

    Args:
        parts: States that keep step.
        comms: Comms of the states alone.
        optimizer: Optimizer that keeps the states.
        tracer: Tracer of the run.

    """

    key = "states"

    def __init__(self, parts: Sequence[StatePart], comms: Comms, optimizer: Optimizer, tracer: Tracer) -> None:
        super().__init__(())
        self._averaged, self._comms = list(parts), comms
        self._comm_thread = CommThread(parts[0].bucket.flat.device, "pliant-states", tracer)
        self._optimizer = weakref.ref(optimizer)
        for part in self._late:
            part.decays(optimizer)  # raises before the first step

    @property
    def _late(self) -> list[StatePart]:
        return [part for part in self._averaged if part.delay_steps]

    def after_step(self, step: int) -> None:
        """Use late means that are due, and average what is due."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        self._comm_thread.raise_error()
        self._take([part for part in self._late if step >= part.last + part.delay_steps], optimizer, step)
        lr = largest_lr(optimizer)
        due = [part for part in self._averaged if part.due(step, lr)]
        for part in due:
            self._start(part, optimizer, step)
        self._take([part for part in due if not part.delay_steps], optimizer, step)

    def hand_back(self, step: int) -> None:
        """Use all late means. Collective."""
        if (optimizer := self._optimizer()) is not None:
            self._take(self._late, optimizer, step)
        self._comm_thread.drain()

    def settle(self, step: int) -> None:
        """Bring means under way to a state that can be saved."""
        self._comm_thread.drain()

    def abandon(self) -> None:
        """Drop means under way, which may fail since other ranks may be lost."""
        for part in self._averaged:
            part.handle = None

    def close(self) -> None:
        """End the communication thread, and close the comm."""
        self._comm_thread.close()
        self._comms.all.close()

    def stats(self) -> dict[str, float]:
        """Return the time of the means."""
        return {"exchange_s": self._comm_thread.busy_s}

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
        sizes: dict[str, int] = {}
        for part in self._averaged:
            late = f", used {part.delay_steps} steps later" if part.delay_steps else ""
            own = f"{part.key} every {part.period} steps{late}"
            sizes[own] = sizes.get(own, 0) + 4 * part.bucket.numel
        told = [f"{own} ({size / 1e6:.3g} MB in float32)" for own, size in sizes.items()]
        return f"Optimizer states are averaged beside weights: {', '.join(told)}."

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Counters of each state, int64 (num_parts, 2): step of the last mean, means. And late means under way."""
        found = {"counters": torch.tensor([[part.last, part.round] for part in self._averaged], dtype=torch.int64)}
        if self._late:
            found["under_way"] = torch.tensor([part.handle is not None for part in self._late], dtype=torch.int64)
        return found | {part.bucket.name: part.correction.clone() for part in self._late if part.correction is not None}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        for part, (last, round_) in zip(self._averaged, saved["counters"].tolist(), strict=True):
            part.last, part.round = last, round_
        for part, under_way in zip(self._late, saved["under_way"].tolist() if self._late else (), strict=True):
            if part.correction is not None:
                part.correction.copy_(saved[part.bucket.name])
            part.handle = self._comm_thread.submit(lambda: None) if under_way else None

    def check_state(self, saved: Mapping[str, Tensor], step: int) -> None:
        """Raise ValueError for counters that no run can have come to."""
        rows = saved["counters"].tolist()
        latest = max(step, *(part.weights.until_step for part in self._averaged))
        if any(last > latest or round_ < 0 for last, round_ in rows):
            raise ValueError(f"the state is damaged: means of optimizer states are counted {rows} in step {step}.")

    def _start(self, part: StatePart, optimizer: Optimizer, step: int) -> None:
        """Let the communication thread form a mean: of what the state is then, or of what it is now if it is late."""
        part.last = step
        if part.correction is not None and part.comm.size > 1:
            part.load(optimizer)
            torch.neg(part.bucket.flat, out=part.correction)
        task = self._task(part, optimizer, step)
        part.handle = self._comm_thread.submit(task, name=part.bucket.name, step=step - 1)

    def _take(self, parts: Sequence[StatePart], optimizer: Optimizer, step: int) -> None:
        """Wait for means; use those that are late, and cut those of Adam's first moment."""
        taken: list[StatePart] = []
        for part in parts:
            if part.handle is not None:
                part.handle.wait()
                part.handle = None
                if part.correction is not None:
                    part.correct(optimizer, part.correction, step)
                taken.append(part)
        firsts = [part for part in taken if part.key == FIRST_MOMENT and part.comm.size > 1]
        ratios = largest_ratios(optimizer) if firsts else {}
        for part in firsts:
            part.bound(optimizer, ratios)

    def _task(self, part: StatePart, optimizer: Optimizer, step: int) -> Callable[[], None]:
        def average() -> None:
            seed = part.round << 32 | zlib.crc32(part.bucket.name.encode())
            context = StepContext(step=step, seed=seed, round=part.round)
            part.round += 1
            if part.comm.size == 1:
                return
            if part.correction is None:
                part.load(optimizer)
            part.require_finite(step)
            with describe_failure(f"averaging {part.bucket.name} after step {step}"):
                rest = part.algorithm.on_ready(part.bucket, part.state, part.comm, context)
            if part.correction is None:
                part.store(optimizer)
            else:
                part.correction.add_(part.bucket.flat)
            if rest is not None:
                rest()

        return average
