"""The one model of the wire: a topology and a set of messages in, seconds out. No torch."""

from pliant.netmodel.links import Links
from pliant.netmodel.messages import DenseExchange, Floats, Ints, Messages, PointToPoint, RankMatrix, Together
from pliant.netmodel.overheads import IDEAL, KEYS, Overheads
from pliant.netmodel.presets import PRESETS, Preset
from pliant.netmodel.round import BucketBatch, Round, passes, work
from pliant.netmodel.round_time import RoundTime

__all__ = [
    "IDEAL",
    "KEYS",
    "PRESETS",
    "BucketBatch",
    "DenseExchange",
    "Floats",
    "Ints",
    "Links",
    "Messages",
    "Overheads",
    "PointToPoint",
    "Preset",
    "RankMatrix",
    "Round",
    "RoundTime",
    "Together",
    "passes",
    "work",
]
