"""A different algorithm for each group of parameters."""

from collections.abc import Iterable, Mapping

from pliant.algorithms.base import Algorithm
from pliant.algorithms.build import build, own_names
from pliant.spec import Match, Rule, SyncPlan

__all__ = ["partition", "plan_of"]


def partition(algorithms: Mapping[str | Match, Algorithm]) -> SyncPlan:
    """Return the plan that gives each parameter the algorithm of the first pattern that matches it.

    Keys are shell patterns over full parameter names, or `Match` values for layer classes and sizes; the last must
    match everything: ``partition({Match(layer="Embedding"): topk(), "*": bytegrad()})``.
    """
    return _carried_out(
        SyncPlan(
            rules=tuple(
                Rule(match=key if isinstance(key, Match) else Match(pattern=key), choice=algorithm.choice)
                for key, algorithm in algorithms.items()
            )
        ),
        algorithms.values(),
    )


def plan_of(algorithm: Algorithm, name: str = "") -> SyncPlan:
    """Return the plan that gives every parameter one algorithm."""
    return _carried_out(SyncPlan(rules=(Rule(choice=algorithm.choice),), name=name), [algorithm])


def _carried_out(plan: SyncPlan, meant: Iterable[Algorithm]) -> SyncPlan:
    """Return a plan, if what carries it out is what was meant. Raises ValueError, naming both, if it is not."""
    for rule, algorithm in zip(plan.rules, meant, strict=True):
        known = all(own_names(SyncPlan(rules=(Rule(choice=rule.choice),))).values())
        if known and (built := build(rule.choice)) != algorithm:
            raise ValueError(
                f"a plan would carry out {built}, but {algorithm} is meant. Combinators that cannot be told apart in a "
                "plan are nested the wrong way round; an algorithm of your own must be a frozen dataclass, and name "
                "all its settings in its choice."
            )
    return plan
