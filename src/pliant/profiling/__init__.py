"""Profiling of a training: workloads for the planner, timelines for reports."""

from pliant.profiling.observe import Observation, observe
from pliant.profiling.profile import Recording, record

__all__ = ["Observation", "Recording", "observe", "record"]
