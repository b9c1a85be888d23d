"""Algorithms and plans by name, for the command line and for `relax`."""

from dataclasses import replace
from pathlib import Path

from pliant.algorithms.grammar import parse
from pliant.algorithms.inputs import AlgorithmLike, node_of
from pliant.algorithms.registry import row_of, standard_text
from pliant.spec import AllReduce, Match, Rule, Sharded, SyncPlan, load

__all__ = ["ONE_BUCKET_BYTES", "SPARED_NUMEL", "plan_for_name", "plan_of_text"]

SPARED_NUMEL = 8192
"""Parameters of at most so many elements are averaged exactly when a lossy algorithm is asked for by name."""

ONE_BUCKET_BYTES = 1 << 40
"""The size of a plan's buckets that leaves all of a model in one, so that one budget is divided among all of it."""


def plan_for_name(algorithm: AlgorithmLike, name: str) -> SyncPlan:
    """Return what a name stands for: where errors are fed back, small parameters are averaged exactly, in few rounds.

    Blocks come in one bucket, so that one budget is divided among all of the model.

    Biases and norms hardly weigh on the network, but share a codec's block with weights of another scale: on the
    demo's network, sparing them lifted the accuracy of onebit after 150 steps from 75.7 to 84.9 %.
    """
    node, name = node_of(algorithm), standard_text(name)
    core, row = node.core, row_of(name.partition("(")[0])
    rules: tuple[Rule, ...] = (Rule(exchange=node),)
    if core.spares_small or (row is not None and row.spare_small):
        # Of a sharded model it is replicas that exchange them exactly: shards travel as was said.
        exact = AllReduce(few_rounds=True)
        spared = replace(node, replicas=exact) if isinstance(node, Sharded) else exact
        rules = (Rule(match=Match(max_numel=SPARED_NUMEL), exchange=spared), *rules)
    one_bucket = core.divides_budget or (row is not None and row.one_bucket)
    return SyncPlan(rules=rules, name=name, bucket_bytes=ONE_BUCKET_BYTES if one_bucket else 0)


def plan_of_text(text: str) -> SyncPlan:
    """Return the plan in a file, or that of an algorithm in the grammar, where there is no optimizer.

    Raises:
        ValueError: There is no such file or algorithm, or it does not take the settings.

    """
    if text.endswith(".json") or _is_file(text):
        return load(SyncPlan, text)
    return plan_for_name(parse(text), text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than names of files can be
        return False
