"""Counts that ranks compare with each other."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from pliant.engine.rank_checks import majority_of, name_ranks
from pliant.spec import Exchange, SyncPlan
from pliant.spec.gradients import with_few_rounds

__all__ = ["LEAVING", "StepCounts", "describe_difference", "has_free_pace", "hash_of_layout", "plan_number"]

_COUNTED = ("at step", "after exchange", "after exchange of weights")
_HASHED = ("another plan", "other buckets")


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """Counts and plan of one rank. Where ranks step at their own pace, what may differ is 0 on all of them."""

    step: int = 0
    """Optimizer steps."""
    num_backwards: int = 0
    """Backward passes whose gradients were exchanged."""
    exchanges: int = 0
    """Exchanges of weights, summed over buckets."""
    plan: int = 0
    """Hash of the plan in force."""
    layout: int = 0
    """Hash of which parameters lie in which bucket of gradients."""

    def row(self) -> list[int]:
        """Return the numbers in the order of fields."""
        return list(astuple(self))


LEAVING = StepCounts(step=-1, num_backwards=-1, exchanges=-1, plan=-1, layout=-1)
"""Counts of a rank whose plan has failed, and whose weights wait for all ranks to leave it."""


def describe_difference(rows: Sequence[Sequence[int]]) -> str:
    """Return a sentence on what ranks have not done alike, and who is behind; empty if they agree.

    Args:
        rows: `StepCounts.row` of each rank, in the order of ranks.

    """
    for k, column in enumerate(zip(*rows, strict=True)):
        values = sorted(set(column))
        if len(values) == 1:
            continue
        if k < len(_COUNTED):
            named = [name_ranks([r for r, v in enumerate(column) if v == value]) for value in values]
            told = [f"{who} {_are(who)} {_COUNTED[k]} {value}" for who, value in zip(named, values, strict=True)]
            return f"{', '.join(told)}, so that {named[0]} {_are(named[0])} behind"
        odd = name_ranks([rank for rank, value in enumerate(column) if value != majority_of(column)])
        return f"{odd} {'has' if _are(odd) == 'is' else 'have'} {_HASHED[k - len(_COUNTED)]} than the majority"
    return ""


def has_free_pace(nodes: Sequence[Exchange]) -> bool:
    """Say whether ranks are at steps of their own: some parameters go at a free pace, and no gradients hold ranks."""
    free = any(node.timing.pace == "free" and node.staleness_bound != 0 for node in nodes)
    return free and all(node.weights_may_diverge for node in nodes)


def hash_of_layout(layout: Mapping[int, Sequence[str]]) -> int:
    """Return a number that tells one layout of buckets from another."""
    return zlib.crc32(repr(sorted((index, *names) for index, names in layout.items())).encode())


def plan_number(plan: SyncPlan) -> int:
    """Return a number that fits into an int64, and is the same for plans with the same states: a plan's hash.

    Exact means count as DDP's, with few rounds or without: so states last that were saved before there were few rounds.
    """
    rules = tuple(replace(rule, exchange=with_few_rounds(rule.exchange, few_rounds=False)) for rule in plan.rules)
    return int(replace(plan, rules=rules).hash, 16) >> 1


def _are(who: str) -> str:
    return "are" if who.startswith("ranks") else "is"
