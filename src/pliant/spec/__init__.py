"""Records only: frozen values that survive a round trip through JSON. No torch here."""

from pliant.spec.codecs import CODECS, CodecFacts, CodecSpec
from pliant.spec.combinators import After, Combinator, Delayed, Every
from pliant.spec.curvature import CurvatureSpec
from pliant.spec.embedding import EmbeddingPlan, Table, TableLayout
from pliant.spec.exchange import NODES, Exchange, text_of
from pliant.spec.files import canonical_hash, from_json, load, save, to_json
from pliant.spec.gradients import (
    AllGather,
    AllReduce,
    BlockSparse,
    Custom,
    LowRank,
    ScatterGather,
)
from pliant.spec.graph import Graph
from pliant.spec.levels import BetweenGroups, BetweenHosts, BetweenRacks
from pliant.spec.machine import Machine
from pliant.spec.momenta import CompressedMomentum, DecoupledMomentum, MomentumDifferences
from pliant.spec.neighbors import NeighborMean
from pliant.spec.optimizer_state import OptimizerState
from pliant.spec.outer import Outer
from pliant.spec.owners import Acco, OwnedOptimizer, ParameterServer, Placement, ShardedOptimizer
from pliant.spec.plan import Match, Rule, SyncPlan
from pliant.spec.regions import RegionServers
from pliant.spec.schedule import Move, OwnerScheduling, Schedule, Scheduling, with_schedule
from pliant.spec.selection import Agreement, Selection, ValueBits
from pliant.spec.sharded import ReduceScatter, Residual, Sharded, WeightGather
from pliant.spec.state_means import averaged_states
from pliant.spec.target import Target
from pliant.spec.timeline import Event, Timeline
from pliant.spec.timing import Timing
from pliant.spec.topology import Host, Link, Rack, Topology
from pliant.spec.visible import VisibleChanges
from pliant.spec.weights import CodedGossip, Gossip, LocalSteps
from pliant.spec.workload import TensorSpec, Workload

__all__ = [
    "CODECS",
    "NODES",
    "Acco",
    "After",
    "Agreement",
    "AllGather",
    "AllReduce",
    "BetweenGroups",
    "BetweenHosts",
    "BetweenRacks",
    "BlockSparse",
    "CodecFacts",
    "CodecSpec",
    "CodedGossip",
    "Combinator",
    "CompressedMomentum",
    "CurvatureSpec",
    "Custom",
    "DecoupledMomentum",
    "Delayed",
    "EmbeddingPlan",
    "Event",
    "Every",
    "Exchange",
    "Gossip",
    "Graph",
    "Host",
    "Link",
    "LocalSteps",
    "LowRank",
    "Machine",
    "Match",
    "MomentumDifferences",
    "Move",
    "NeighborMean",
    "OptimizerState",
    "Outer",
    "OwnedOptimizer",
    "OwnerScheduling",
    "ParameterServer",
    "Placement",
    "Rack",
    "ReduceScatter",
    "RegionServers",
    "Residual",
    "Rule",
    "ScatterGather",
    "Schedule",
    "Scheduling",
    "Selection",
    "Sharded",
    "ShardedOptimizer",
    "SyncPlan",
    "Table",
    "TableLayout",
    "Target",
    "TensorSpec",
    "Timeline",
    "Timing",
    "Topology",
    "ValueBits",
    "VisibleChanges",
    "WeightGather",
    "Workload",
    "averaged_states",
    "canonical_hash",
    "from_json",
    "load",
    "save",
    "text_of",
    "to_json",
    "with_schedule",
]
