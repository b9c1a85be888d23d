"""What is achieved: exact, compressed, sparse and low-rank averages over any Comm."""

from pliant.collectives.averaging import CastAverage, DirectAverage, SummedAverage, average
from pliant.collectives.compressed import CompressedAverage
from pliant.collectives.gossip import CodedGossip, Gossip
from pliant.collectives.lowrank import LowRankAverage, factor_shape
from pliant.collectives.sparse import SparseAverage

__all__ = [
    "CastAverage",
    "CodedGossip",
    "CompressedAverage",
    "DirectAverage",
    "Gossip",
    "LowRankAverage",
    "SparseAverage",
    "SummedAverage",
    "average",
    "factor_shape",
]
