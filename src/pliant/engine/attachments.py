"""Attachments of a run from above: a tuner of its plans, and a recording. A run begins with neither."""

from typing import Any

from pliant.engine.parts import Part

__all__ = ["AttachedProfile", "AttachedTuner", "KeepsPlan", "RecordsNothing"]


class AttachedTuner(Part):
    """Chooses plans while a run trains, as `pliant.autotune` does. A moment does nothing unless a tuner fills it."""

    explanation = ""
    """Text on the current choice and its reasons."""
    advice: Any = None
    """Changes of rate, batch and optimizer that the chosen plan asks for (`planner.Advice`); None before a choice."""

    def end_trial(self) -> None:
        """End the current trial, before the run ends. Collective."""

    def end_plan(self) -> None:
        """End the guard of the adopted plan, whatever it raises. Collective."""


class KeepsPlan(AttachedTuner):
    """Keeps the plan that was given."""


class AttachedProfile:
    """Writes down what happens in some steps, as `pliant.profiling` does. A moment does nothing unless it is filled."""

    @property
    def open(self) -> bool:
        """Whether steps are still to come."""
        return False

    def end(self) -> None:
        """End the recording now, and write the steps so far."""

    def close(self) -> None:
        """End the recording now, and remove its hooks."""


class RecordsNothing(AttachedProfile):
    """Writes nothing down, since nobody has asked for it."""
