"""Profiling of a training: workloads for the planner, timelines for reports."""

from pliant.profiling.observe import Observation, observe
from pliant.profiling.profile import Profile, profile

__all__ = ["Observation", "Profile", "observe", "profile"]
