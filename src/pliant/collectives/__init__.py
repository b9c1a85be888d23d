"""Collectives: exact, compressed, sparse and low-rank averages over any Comm."""

from pliant.collectives.averaging import CastSum, DirectAverage, SummedAverage
from pliant.collectives.blocks import AgreedBlocks, BlockGrid, Carried, GatheredBlocks, LedMask, ScoreMean
from pliant.collectives.clocks import Clocks
from pliant.collectives.compressed import CompressedAverage
from pliant.collectives.gossip import CodedGossip, Gossip
from pliant.collectives.lowrank import LowRankAverage
from pliant.collectives.owner import OwnerSum
from pliant.collectives.sparse import SparseAverage
from pliant.layouts.division import factor_shape, place

__all__ = [
    "AgreedBlocks",
    "BlockGrid",
    "Carried",
    "CastSum",
    "Clocks",
    "CodedGossip",
    "CompressedAverage",
    "DirectAverage",
    "GatheredBlocks",
    "Gossip",
    "LedMask",
    "LowRankAverage",
    "OwnerSum",
    "ScoreMean",
    "SparseAverage",
    "SummedAverage",
    "factor_shape",
    "place",
]
