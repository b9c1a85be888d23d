"""Default tuner and default recording of a run, which do nothing; other rooms attach their own."""

from typing import Any

from pliant.engine.parts import Part

__all__ = ["AttachedRecording", "AttachedTuner"]


class AttachedTuner(Part):
    """Default tuner of a run, which keeps the plan that was given; `pliant.autotune` attaches one that chooses."""

    explanation = ""
    """Text on the current choice and its reasons."""
    advice: Any = None
    """Changes of rate, batch and optimizer that the chosen plan asks for (`planner.Advice`); None before a choice."""

    def end_trial(self) -> None:
        """End the current trial, before the run ends. Collective."""

    def end_plan(self) -> None:
        """End the guard of the adopted plan, whatever it raises. Collective."""


class AttachedRecording:
    """Default recording of a run, which writes nothing; `pliant.profiling` attaches one that records steps."""

    @property
    def open(self) -> bool:
        """Whether steps are still to come."""
        return False

    def end(self) -> None:
        """End the recording now, and write the steps so far."""

    def close(self) -> None:
        """End the recording now, and remove its hooks."""
