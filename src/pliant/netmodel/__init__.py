"""The one model of the wire: a topology and a set of messages in, seconds out. No torch."""

from pliant.netmodel.links import Links
from pliant.netmodel.messages import (
    DenseExchange,
    Floats,
    HostExchange,
    Ints,
    Messages,
    PointToPoint,
    RankMatrix,
    Together,
)
from pliant.netmodel.overheads import IDEAL, KEYS, Overheads
from pliant.netmodel.presets import PRESETS, machine_of, overheads_of
from pliant.netmodel.round import BucketBatch, Round, passes, work
from pliant.netmodel.round_time import RoundTime
from pliant.netmodel.slow_start import OpenedPaths, in_turn_s, retransmission_timeout_s, slow_start_s

__all__ = [
    "IDEAL",
    "KEYS",
    "PRESETS",
    "BucketBatch",
    "DenseExchange",
    "Floats",
    "HostExchange",
    "Ints",
    "Links",
    "Messages",
    "OpenedPaths",
    "Overheads",
    "PointToPoint",
    "RankMatrix",
    "Round",
    "RoundTime",
    "Together",
    "in_turn_s",
    "machine_of",
    "overheads_of",
    "passes",
    "retransmission_timeout_s",
    "slow_start_s",
    "work",
]
