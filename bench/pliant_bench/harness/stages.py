"""Requests of ranks for a network, and the wait until it is there."""

import time
from pathlib import Path

import torch.distributed as dist

from pliant_bench.harness.emit import emit
from pliant_bench.harness.setup import STOP, stage_file

__all__ = ["await_network"]

_NETWORK_S = 120.0
"""The longest that setting up the network may take."""


def await_network(folder: Path, stage: int, wanted: int) -> None:
    """Ask for a network and wait until it is there; nothing is on its way meanwhile. Collective.

    Args:
        folder: Where the answer appears, as `stage_file(folder, stage)`.
        stage: Counts up from 0 in the life of the ranks.
        wanted: Number of the cell whose network it shall be, or OPEN.

    Raises:
        TimeoutError: Nobody has answered for two minutes.
        RuntimeError: The answer is that it could not be.

    """
    dist.barrier()
    emit("want", {"stage": stage, "cell": wanted})
    answer, until_s = stage_file(folder, stage), time.monotonic() + _NETWORK_S
    while not answer.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the network of stage {stage} was asked for {_NETWORK_S:.0f} s ago, and is not there.")
        time.sleep(0.02)
    if answer.read_text() == STOP:
        raise RuntimeError(f"the network of stage {stage} could not be set up; who started the ranks says why.")
    dist.barrier()
