"""A different algorithm for each group of parameters."""

from collections.abc import Mapping

from pliant.algorithms.executors import executor_for
from pliant.algorithms.inputs import AlgorithmLike, node_of
from pliant.algorithms.registry import custom_names
from pliant.spec import Match, Rule, SyncPlan

__all__ = ["partition", "plan_of"]


def partition(algorithms: Mapping[str | Match, AlgorithmLike]) -> SyncPlan:
    """Return the plan that gives each parameter the algorithm of the first pattern that matches it.

    Keys are shell patterns over full parameter names, or `Match` values for layer classes and sizes; the last must
    match everything: ``partition({Match(layer="Embedding"): topk(), "*": bytegrad()})``.
    """
    return SyncPlan(
        rules=tuple(
            _rule(key if isinstance(key, Match) else Match(pattern=key), algorithm)
            for key, algorithm in algorithms.items()
        )
    )


def plan_of(algorithm: AlgorithmLike, name: str = "") -> SyncPlan:
    """Return the plan that gives every parameter one algorithm."""
    return SyncPlan(rules=(_rule(Match(), algorithm),), name=name)


def _rule(match: Match, algorithm: AlgorithmLike) -> Rule:
    """Return a rule, if what would carry it out is what was given. Raises ValueError, naming both, if it is not."""
    node = node_of(algorithm)
    if all(custom_names(SyncPlan(rules=(Rule(exchange=node),))).values()):
        built = executor_for(node)
        if algorithm is not node and built != algorithm:
            raise ValueError(
                f"a plan would carry out {built}, but {algorithm} is meant. An algorithm of your own must be a frozen "
                "dataclass, and name all its settings in its node."
            )
    return Rule(match=match, exchange=node)
