"""Ranks that torchrun has started, on whatever machines: each runs the same command, and rank 0 speaks. No torch."""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace

from pliant.network.emulate import RankResult, run_ranks
from pliant.network.namespaces import die_with_parent

__all__ = ["TorchrunHost", "rank_of_torchrun", "size_of_torchrun"]


def rank_of_torchrun() -> int | None:
    """Return this process's rank if torchrun has started it, or who sets the same environment; else None."""
    return int(os.environ["RANK"]) if size_of_torchrun() else None


def size_of_torchrun() -> int:
    """Return the number of ranks that torchrun has started, or 0."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ):
        return 0
    return int(os.environ["WORLD_SIZE"])


class TorchrunHost:
    """Runs a command as this rank, in the environment that torchrun gave to this process; the others do the same."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def run(self, argv: Sequence[str], *, on_line: Callable[[int, str], None]) -> list[RankResult]:
        """Run it and wait. When torchrun ends this process, the command ends with it."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=die_with_parent(os.getpid()),
            start_new_session=True,
        )
        (ended,) = run_ranks([process], ["this host"], lambda _, line: on_line(self._rank, line), timeout_s=0.0)
        return [replace(ended, rank=self._rank)]
