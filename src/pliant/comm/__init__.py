"""Communication: one protocol, several implementations that stack."""

from pliant.comm.base import Comm, CommError, ReduceOp, Work, another
from pliant.comm.faulty import FaultyComm
from pliant.comm.hierarchical import HierarchicalComm, by_hosts
from pliant.comm.ordered import InOrderComm, InOrderQueues
from pliant.comm.own import own_group
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.recorded import RecordedComm
from pliant.comm.sharing import share_text
from pliant.comm.staged import StagedComm
from pliant.comm.threads import RankContext, run_world

__all__ = [
    "Comm",
    "CommError",
    "FaultyComm",
    "HierarchicalComm",
    "InOrderComm",
    "InOrderQueues",
    "ProcessGroupComm",
    "RankContext",
    "RecordedComm",
    "ReduceOp",
    "StagedComm",
    "Work",
    "another",
    "by_hosts",
    "own_group",
    "run_world",
    "share_text",
]
