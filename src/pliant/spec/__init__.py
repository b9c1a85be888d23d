"""Nouns only: frozen records that survive a round trip through JSON. No torch here."""

from pliant.spec.curvature import CurvatureSpec
from pliant.spec.embedding import EmbeddingPlan, Table, TableLayout
from pliant.spec.files import canonical_hash, from_json, load, save, to_json
from pliant.spec.graph import Graph
from pliant.spec.machine import Machine
from pliant.spec.plan import Choice, CodecSpec, Match, Outer, OwnSpec, Rule, SyncPlan
from pliant.spec.schedule import Move, Schedule
from pliant.spec.selection import Agreement, Selection, ValueBits
from pliant.spec.target import Target
from pliant.spec.timeline import Event, Timeline
from pliant.spec.topology import Host, Link, Rack, Topology
from pliant.spec.workload import TensorSpec, Workload

__all__ = [
    "Agreement",
    "Choice",
    "CodecSpec",
    "CurvatureSpec",
    "EmbeddingPlan",
    "Event",
    "Graph",
    "Host",
    "Link",
    "Machine",
    "Match",
    "Move",
    "Outer",
    "OwnSpec",
    "Rack",
    "Rule",
    "Schedule",
    "Selection",
    "SyncPlan",
    "Table",
    "TableLayout",
    "Target",
    "TensorSpec",
    "Timeline",
    "Topology",
    "ValueBits",
    "Workload",
    "canonical_hash",
    "from_json",
    "load",
    "save",
    "to_json",
]
