"""Emulated clusters on one machine: real processes, real TCP, links as slow as you like."""

from pliant.network.emulate import Cluster, RankResult, emulated
from pliant.network.linkcheck import LinkReport
from pliant.network.namespaces import CannotEmulateError

__all__ = ["CannotEmulateError", "Cluster", "LinkReport", "RankResult", "emulated"]
