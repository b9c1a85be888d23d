"""Attachment to one process of a script: it waits for a wrapped model, measures its steps, and lets Pliant choose."""

from collections.abc import Generator
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from pliant.attachment.steps import StepEnds
from pliant.attachment.verdict import RunOptions
from pliant.attachment.wrapped import WrappedModels

__all__ = ["Attachment"]

_LOOK_AGAIN = 2
"""Factor between the steps after which a model is looked for, as long as none is found."""


class Attachment:
    """Hears the steps of a script's optimizers, and acts between two of them.

    Args:
        folder: Folder of this run.

    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._options = folder, RunOptions.load(folder)
        self._ends: StepEnds | None = None
        self._wrapped: WrappedModels | None = None
        self._work: Generator[None] | None = None
        self._steps_heard, self._next_look = 0, 1

    def begin(self) -> None:
        """Begin to hear steps. Nothing happens in a process that makes none."""
        self._ends, self._wrapped = StepEnds(self._after_step), WrappedModels()

    def _after_step(self, optimizers: list[Optimizer]) -> None:
        if self._work is not None:
            next(self._work)
            return
        self._steps_heard += 1
        if self._steps_heard < self._next_look or self._wrapped is None:
            return
        self._next_look *= _LOOK_AGAIN
        if models := self._wrapped.of(optimizers):
            self._start(models, optimizers)

    def _start(self, models: list[nn.Module], optimizers: list[Optimizer]) -> None:
        from pliant.attachment.course import Course

        course = Course(models, optimizers, self._options, self._folder)
        if self._ends is not None:
            self._ends.keep(course.optimizers)
        self._work = course.steps()
        next(self._work)
