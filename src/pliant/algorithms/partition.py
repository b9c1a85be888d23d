"""A different algorithm for each group of parameters."""

from collections.abc import Mapping

from pliant.algorithms.base import Algorithm
from pliant.spec import Match, Rule, SyncPlan

__all__ = ["partition", "plan_of"]


def partition(algorithms: Mapping[str | Match, Algorithm]) -> SyncPlan:
    """Return the plan that gives each parameter the algorithm of the first pattern that matches it.

    Keys are shell patterns over full parameter names, or `Match` values for layer classes and sizes; the last must
    match everything: ``partition({Match(layer="Embedding"): topk(), "*": bytegrad()})``.
    """
    return SyncPlan(
        rules=tuple(
            Rule(match=key if isinstance(key, Match) else Match(pattern=key), choice=algorithm.choice)
            for key, algorithm in algorithms.items()
        )
    )


def plan_of(algorithm: Algorithm, name: str = "") -> SyncPlan:
    """Return the plan that gives every parameter one algorithm."""
    return SyncPlan(rules=(Rule(choice=algorithm.choice),), name=name)
