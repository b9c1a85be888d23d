"""Relaxations as values: each a short file, with combinators for when, where and for which parameters."""

from pliant.algorithms.allreduce import AllReduce, allreduce, bf16, fp16
from pliant.algorithms.base import Algorithm, Moment, State
from pliant.algorithms.build import ALGORITHMS, build, named
from pliant.algorithms.hierarchy import BetweenHosts, between_hosts
from pliant.algorithms.onebit_adam import Momentum, OneBitAdam
from pliant.algorithms.partition import partition, plan_of
from pliant.algorithms.powersgd import PowerSgd, powersgd
from pliant.algorithms.quantized import Quantized, bytegrad, int4, natural, onebit, qsgd, terngrad
from pliant.algorithms.randomk import RandomSparse, randomk
from pliant.algorithms.sparse import Sparse, blocktopk, topk
from pliant.algorithms.timing import After, Every, after, every

__all__ = [
    "ALGORITHMS",
    "After",
    "Algorithm",
    "AllReduce",
    "BetweenHosts",
    "Every",
    "Moment",
    "Momentum",
    "OneBitAdam",
    "PowerSgd",
    "Quantized",
    "RandomSparse",
    "Sparse",
    "State",
    "after",
    "allreduce",
    "between_hosts",
    "bf16",
    "blocktopk",
    "build",
    "bytegrad",
    "every",
    "fp16",
    "int4",
    "named",
    "natural",
    "onebit",
    "partition",
    "plan_of",
    "powersgd",
    "qsgd",
    "randomk",
    "terngrad",
    "topk",
]
