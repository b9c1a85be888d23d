"""Requests of ranks for a network, and the wait until it is there."""

import time
from pathlib import Path
from typing import final

import torch.distributed as dist

from pliant_bench.harness.emit import emit
from pliant_bench.harness.setup import STOP, stage_file

__all__ = ["NetworkRequests"]

_NETWORK_S = 120.0
"""The longest that setting up the network may take."""


@final
class NetworkRequests:
    """Requests of one life of the ranks, numbered from 0.

    Args:
        folder: Where the answers appear, as `stage_file(folder, number)`.

    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._stage = folder, 0

    def wait_for(self, wanted: int) -> None:
        """Ask for a network and wait until it is there; nothing is on its way meanwhile. Collective.

        Args:
            wanted: Number of the cell whose network it shall be, or OPEN.

        Raises:
            TimeoutError: Nobody has answered for two minutes.
            RuntimeError: The answer is that it could not be.

        """
        stage, self._stage = self._stage, self._stage + 1
        dist.barrier()
        emit("want", {"stage": stage, "cell": wanted})
        answer, until_s = stage_file(self._folder, stage), time.monotonic() + _NETWORK_S
        while not answer.exists():
            if time.monotonic() > until_s:
                raise TimeoutError(f"network {stage} was asked for {_NETWORK_S:.0f} s ago, and is not there.")
            time.sleep(0.02)
        if answer.read_text() == STOP:
            raise RuntimeError(f"network {stage} could not be set up; who started the ranks says why.")
        dist.barrier()
