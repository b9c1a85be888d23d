"""A log of a run's steps, written to where people look."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from pliant.engine.step_meter import Metered, StepMeter
from pliant.metrics.base import LogTarget

__all__ = ["StepLog"]


class StepLog:
    """Writes the figures of every k-th step, and what the training loop has added to them.

    Args:
        run: The run.
        target: Writer of the rows.
        every: Steps of one row.
        residual_every: Steps from one norm of the residuals to the next; 0 for never.
        writes: Returns whether this rank writes.

    """

    def __init__(
        self, run: Metered, target: LogTarget, *, every: int, residual_every: int, writes: Callable[[], bool]
    ) -> None:
        self._meter, self._target, self._writes = StepMeter(run), target, writes
        self._every, self._residual_every = every, residual_every
        self._at = self._residual_at = 0
        """Steps since the last row, and since the last norm."""
        self._step = 0
        self._own: dict[str, Any] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values of the training loop to the next row."""
        self._own |= {name: value.detach() if isinstance(value, Tensor) else value for name, value in values.items()}

    def after_step(self, step: int) -> None:
        """Note that a step has ended, and write a row if it is due."""
        self._step = step
        self._at += 1
        self._residual_at += 1
        if self._at >= self._every:
            self._write()

    def close(self) -> None:
        """Write the steps since the last row, and close the target, if this rank writes."""
        if self._at:
            self._write()
        if self._writes():
            self._target.close()

    def _write(self) -> None:
        self._at, own = 0, self._own
        if not self._writes():
            return
        residual = 0 < self._residual_every <= self._residual_at
        if residual:
            self._residual_at = 0
        if values := self._meter.take(residual=residual):
            self._own = {}
            self._target.log(self._step, values | {name: float(value) for name, value in own.items()})
