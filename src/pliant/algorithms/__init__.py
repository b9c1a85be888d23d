"""Relaxations: each a short file, with combinators for when, where and for which parameters."""

from pliant.algorithms.allreduce import allreduce, bf16, fp16
from pliant.algorithms.base import CURVATURE, Algorithm, FeelsCurvature, Moment, State
from pliant.algorithms.demo import demo
from pliant.algorithms.dynamic import dynamic
from pliant.algorithms.executors import EXECUTORS, executor_for
from pliant.algorithms.given import AlgorithmLike, node_of
from pliant.algorithms.gossip import choco, dcd, gossip
from pliant.algorithms.hierarchy import between_hosts
from pliant.algorithms.local import (
    async_average,
    diloco,
    local_sgd,
    post_local_sgd,
    sparse_loco,
    streaming_diloco,
)
from pliant.algorithms.onebit_adam import OneBitAdam
from pliant.algorithms.owner import owner, stale
from pliant.algorithms.partition import partition, plan_of
from pliant.algorithms.powersgd import powersgd
from pliant.algorithms.quantized import bytegrad, int4, natural, onebit, qsgd, terngrad
from pliant.algorithms.randomk import randomk
from pliant.algorithms.registry import ALGORITHMS, named, register
from pliant.algorithms.sparse import blocktopk, topk
from pliant.algorithms.tasc import tasc
from pliant.algorithms.timing import after, every, late

__all__ = [
    "ALGORITHMS",
    "CURVATURE",
    "EXECUTORS",
    "Algorithm",
    "AlgorithmLike",
    "FeelsCurvature",
    "Moment",
    "OneBitAdam",
    "State",
    "after",
    "allreduce",
    "async_average",
    "between_hosts",
    "bf16",
    "blocktopk",
    "bytegrad",
    "choco",
    "dcd",
    "demo",
    "diloco",
    "dynamic",
    "every",
    "executor_for",
    "fp16",
    "gossip",
    "int4",
    "late",
    "local_sgd",
    "named",
    "natural",
    "node_of",
    "onebit",
    "owner",
    "partition",
    "plan_of",
    "post_local_sgd",
    "powersgd",
    "qsgd",
    "randomk",
    "register",
    "sparse_loco",
    "stale",
    "streaming_diloco",
    "tasc",
    "terngrad",
    "topk",
]
