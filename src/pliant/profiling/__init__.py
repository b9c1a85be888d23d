"""Profiling of a training: workloads for the planner, timelines for reports."""

from pliant.profiling.observe import Observation, observe
from pliant.profiling.own_factory import load_own_training, read_own_training
from pliant.profiling.own_training import OwnTraining
from pliant.profiling.own_workload import profile_own_training
from pliant.profiling.profile import Profile, profile

__all__ = [
    "Observation",
    "OwnTraining",
    "Profile",
    "load_own_training",
    "observe",
    "profile",
    "profile_own_training",
    "read_own_training",
]
