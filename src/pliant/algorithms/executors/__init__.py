"""A node of a plan to the algorithm that carries it out."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from pliant.algorithms.base import Algorithm
from pliant.algorithms.executors.all_gather import AllGatherExecutor
from pliant.algorithms.executors.all_reduce import AllReduceExecutor
from pliant.algorithms.executors.between_hosts import BetweenHostsExecutor
from pliant.algorithms.executors.block_sparse import BlockSparseExecutor
from pliant.algorithms.executors.compressed_momentum import CompressedMomentumExecutor
from pliant.algorithms.executors.decoupled_momentum import DecoupledMomentumExecutor
from pliant.algorithms.executors.gossip import CodedGossipExecutor, GossipExecutor
from pliant.algorithms.executors.local_steps import LocalStepsExecutor
from pliant.algorithms.executors.low_rank import LowRankExecutor
from pliant.algorithms.executors.owners import OwnerExecutor
from pliant.algorithms.executors.randomk import RandomKExecutor
from pliant.algorithms.executors.scatter_gather import ScatterGatherExecutor
from pliant.algorithms.executors.sharded import ShardedExecutor
from pliant.algorithms.executors.timing import AfterExecutor, DelayedExecutor, EveryExecutor
from pliant.algorithms.registry import custom_algorithm
from pliant.codecs import codec_from
from pliant.spec import (
    After,
    AllGather,
    AllReduce,
    BetweenHosts,
    BlockSparse,
    CodedGossip,
    CompressedMomentum,
    Custom,
    DecoupledMomentum,
    Delayed,
    Every,
    Exchange,
    Gossip,
    LocalSteps,
    LowRank,
    ParameterServer,
    ScatterGather,
    Sharded,
    ShardedOptimizer,
)

__all__ = ["EXECUTORS", "executor_for"]


def executor_for(node: Exchange) -> Algorithm:
    """Return the algorithm that carries out a node; ``executor_for(node).node == node``.

    Raises:
        ValueError: A setting of a codec is out of its range, or nobody has registered an algorithm that is not
            Pliant's; or what was registered is another one than the node names.

    """
    if node.payload_codec is not None:
        codec_from(node.payload_codec)
    made = EXECUTORS[type(node)](node)
    if made.node != node:
        raise ValueError(
            f"{node} is meant, but what is registered under its name carries out {made.node}; an algorithm of your own "
            "must be a frozen dataclass, and name all its settings in its node."
        )
    return made


def _custom(node: Custom) -> Algorithm:
    made = custom_algorithm(node)
    return executor_for(made) if isinstance(made, Exchange) else cast(Algorithm, made)


def _all_reduce(node: AllReduce) -> Algorithm:
    shared = node.codec is not None and node.codec.facts.kind == "shared"
    return RandomKExecutor(node) if shared else AllReduceExecutor(node)


EXECUTORS: Mapping[type[Exchange], Callable[[Any], Algorithm]] = {
    AllReduce: _all_reduce,
    ScatterGather: ScatterGatherExecutor,
    AllGather: AllGatherExecutor,
    BlockSparse: BlockSparseExecutor,
    LowRank: LowRankExecutor,
    DecoupledMomentum: DecoupledMomentumExecutor,
    CompressedMomentum: CompressedMomentumExecutor,
    ShardedOptimizer: OwnerExecutor,
    ParameterServer: OwnerExecutor,
    Gossip: GossipExecutor,
    CodedGossip: CodedGossipExecutor,
    Custom: _custom,
    LocalSteps: lambda node: LocalStepsExecutor(node, executor_for(node.averaging)),
    Every: lambda node: EveryExecutor(node, executor_for(node.inner)),
    Delayed: lambda node: DelayedExecutor(node, executor_for(node.inner)),
    BetweenHosts: lambda node: BetweenHostsExecutor(node, executor_for(node.inner)),
    After: lambda node: AfterExecutor(node, executor_for(node.first), executor_for(node.then)),
    Sharded: lambda node: ShardedExecutor(node, executor_for(node.replicas or AllReduce())),
}
"""Type of node -> what makes its executor."""
