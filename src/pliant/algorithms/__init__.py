"""Relaxations as values: each a short file, with combinators for when, where and for which parameters."""

from pliant.algorithms.allreduce import AllReduce, allreduce, bf16, fp16
from pliant.algorithms.base import CURVATURE, Algorithm, FeelsCurvature, Moment, State
from pliant.algorithms.build import ALGORITHMS, build, named, register
from pliant.algorithms.demo import DeMo, demo
from pliant.algorithms.dynamic import dynamic
from pliant.algorithms.gossip import CodedNeighbours, Neighbours, choco, dcd, gossip
from pliant.algorithms.hierarchy import BetweenHosts, between_hosts
from pliant.algorithms.local import (
    Local,
    async_average,
    diloco,
    local_sgd,
    post_local_sgd,
    sparse_loco,
    streaming_diloco,
)
from pliant.algorithms.onebit_adam import Momentum, OneBitAdam
from pliant.algorithms.owner import Owner, owner, stale
from pliant.algorithms.partition import partition, plan_of
from pliant.algorithms.powersgd import PowerSgd, powersgd
from pliant.algorithms.quantized import Quantized, bytegrad, int4, natural, onebit, qsgd, terngrad
from pliant.algorithms.randomk import RandomSparse, randomk
from pliant.algorithms.sparse import Sparse, blocktopk, topk
from pliant.algorithms.tasc import Tasc, tasc
from pliant.algorithms.timing import After, Every, Late, after, every, late

__all__ = [
    "ALGORITHMS",
    "CURVATURE",
    "After",
    "Algorithm",
    "AllReduce",
    "BetweenHosts",
    "CodedNeighbours",
    "DeMo",
    "Every",
    "FeelsCurvature",
    "Late",
    "Local",
    "Moment",
    "Momentum",
    "Neighbours",
    "OneBitAdam",
    "Owner",
    "PowerSgd",
    "Quantized",
    "RandomSparse",
    "Sparse",
    "State",
    "Tasc",
    "after",
    "allreduce",
    "async_average",
    "between_hosts",
    "bf16",
    "blocktopk",
    "build",
    "bytegrad",
    "choco",
    "dcd",
    "demo",
    "diloco",
    "dynamic",
    "every",
    "fp16",
    "gossip",
    "int4",
    "late",
    "local_sgd",
    "named",
    "natural",
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
