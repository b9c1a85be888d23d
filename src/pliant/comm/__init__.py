"""Communication: one protocol, several implementations that stack."""

from pliant.comm.base import Comm, CommError, ReduceOp, Work, duplicate
from pliant.comm.by_device import ByDeviceComm
from pliant.comm.faulty import FaultyComm
from pliant.comm.hierarchical import HierarchicalComm, hierarchical_comm
from pliant.comm.ordered import InOrderComm, InOrderQueues
from pliant.comm.private_comm import new_comm
from pliant.comm.process_group import ProcessGroupComm
from pliant.comm.recorded import RecordedComm
from pliant.comm.staged import StagedComm
from pliant.comm.text_broadcast import broadcast_text
from pliant.comm.threads import RankContext, run_world

__all__ = [
    "ByDeviceComm",
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
    "broadcast_text",
    "duplicate",
    "hierarchical_comm",
    "new_comm",
    "run_world",
]
