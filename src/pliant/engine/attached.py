"""Protocols of what is attached to a run from above: a tuner of its plans, and a recording."""

from typing import Any, Protocol

__all__ = ["AttachedRecording", "AttachedTuner"]


class AttachedTuner(Protocol):
    """Chooses plans while a run trains: `pliant.autotune`."""

    explanation: str
    """What it does, or what it chose and why."""
    advice: Any
    """What to do about rate, batch and optimizer under the plan that it chose (`planner.Advice`); None before."""

    def after_step(self) -> None:
        """Go on after an optimizer step. Collective."""
        ...

    def land(self) -> None:
        """End what is tried, before the run ends. Collective."""
        ...

    def end_plan(self) -> None:
        """End the plan in force, whatever it raises. Collective."""
        ...

    def close(self) -> None:
        """Remove all hooks that it has."""
        ...


class AttachedRecording(Protocol):
    """Writes down what happens in some steps: `pliant.profiling`."""

    @property
    def open(self) -> bool:
        """Whether steps are still to come."""
        ...

    def end(self) -> None:
        """End now, and write what there is."""
        ...

    def close(self) -> None:
        """End now, and remove hooks."""
        ...
