"""What is attached to a run from above: a tuner of its plans, and a recording. A run begins with neither."""

from typing import Any

from pliant.engine.parts import Part

__all__ = ["AttachedProfile", "AttachedTuner"]


class AttachedTuner(Part):
    """Chooses plans while a run trains, as `pliant.autotune` does; this one keeps the plan that was given."""

    explanation = ""
    """What it does, or what it chose and why."""
    advice: Any = None
    """What to do about rate, batch and optimizer under the plan that it chose (`planner.Advice`); None before."""

    def end_trial(self) -> None:
        """End the trial that is on, before the run ends. Collective."""

    def end_plan(self) -> None:
        """End the plan in force, whatever it raises. Collective."""


class AttachedProfile:
    """Writes down what happens in some steps, as `pliant.profiling` does; this one writes nothing."""

    @property
    def open(self) -> bool:
        """Whether steps are still to come."""
        return False

    def end(self) -> None:
        """End now, and write what there is."""

    def close(self) -> None:
        """End now, and remove hooks."""
