"""Collectives: exact, compressed, sparse and low-rank averages over any Comm."""

from pliant.collectives.averaging import CastAllReduce, SharedSparseAverage, ShortVectorAverage
from pliant.collectives.block_grid import BlockGrid
from pliant.collectives.blocks import BlockAllGather, BlockResult, LeaderMask, ScoreMean, SharedBlockAverage
from pliant.collectives.clocks import StalenessClock
from pliant.collectives.compressed import CompressedAverage
from pliant.collectives.gossip import CodedNeighborAverage, NeighborAverage
from pliant.collectives.hierarchical import HierarchicalAverage
from pliant.collectives.lowrank import LowRankAverage
from pliant.collectives.owner import ReduceToOwners, SpreadFromOwners
from pliant.collectives.sparse import SparseAverage
from pliant.layouts.division import factor_shape

__all__ = [
    "BlockAllGather",
    "BlockGrid",
    "BlockResult",
    "CastAllReduce",
    "CodedNeighborAverage",
    "CompressedAverage",
    "HierarchicalAverage",
    "LeaderMask",
    "LowRankAverage",
    "NeighborAverage",
    "ReduceToOwners",
    "ScoreMean",
    "SharedBlockAverage",
    "SharedSparseAverage",
    "ShortVectorAverage",
    "SparseAverage",
    "SpreadFromOwners",
    "StalenessClock",
    "factor_shape",
]
