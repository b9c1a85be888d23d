"""A grid of networks: which cells, in which order, and how their networks come to be while ranks wait. No torch."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pliant.cli.emulate import topology_from_flags
from pliant.network import LinkReport
from pliant.network.changes import without_limits
from pliant.network.link_check import link_faults
from pliant.spec import Topology
from pliant.spec.units import parse_rate, parse_time
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.resumed import records_before
from pliant_bench.harness.setup import MARK, OPEN, Cell, Setup, answer

__all__ = ["NetworkController", "Reshaped", "cells_left", "cells_of", "cells_of_file"]


class Reshaped(Protocol):
    """Hosts whose links can be changed while ranks run, and looked at."""

    def reshape(self, topology: Topology) -> None:
        """Give the links other rates and delays."""
        ...

    def check_links(self) -> list[LinkReport]:
        """Measure the links between hosts."""
        ...


def cells_of(models: Sequence[str], rates: Sequence[str], delays: Sequence[str], slow_share: float) -> tuple[Cell, ...]:
    """Return the cells from the fastest network to the slowest, and at the shortest delay also with a slow host.

    In this order a connection never has to find its way up: what it has learned of a network with more on its way
    (TCP's slow-start threshold) is corrected by the first loss, while the other way round takes minutes.
    """
    fast_first = sorted(rates, key=lambda rate: parse_rate(rate) if rate != "none" else float("inf"), reverse=True)
    long_first = sorted(delays, key=parse_time, reverse=True)
    cells: list[Cell] = []
    for model in models:
        for rate in fast_first:
            cells += [Cell(model=model, rate=rate, delay=delay) for delay in long_first]
            if slow_share:
                cells.append(Cell(model=model, rate=rate, delay=long_first[-1], slow_share=slow_share))
    return tuple(cells)


def cells_of_file(path: Path | None, setup: Setup, num_hosts: int) -> list[dict[str, Any]]:
    """Return the cells that a file of an earlier run has. Raises ValueError if that run was another one."""
    before = records_before(path, setup, num_hosts, alike=("mode", "bucket_mb"), what="cells")
    return [r for r in before if r["kind"] == "cell"]


def cells_left(cells: Sequence[Cell], before: Sequence[dict[str, Any]]) -> tuple[Cell, ...]:
    """Return the cells that have not been measured."""
    done = {Cell(**{name: r[name] for name in ("model", "rate", "delay", "slow_share")}) for r in before}
    return tuple(cell for cell in cells if cell not in done)


@dataclass(kw_only=True)
class NetworkController:
    """Sets up the network that ranks ask for, tells them that it is there, and keeps what they have measured."""

    setup: Setup
    num_hosts: int
    cluster: Reshaped | None
    """None for ranks on loopback, which have no links to change."""
    limits: Topology | None = None
    """Network of a training, in the place of a grid's cells."""
    folder: Path
    """Where the ranks look for answers."""
    progress: Progress
    keep: Callable[[list[dict[str, Any]]], None]
    """Called with all records after each cell, and after each training."""
    error: Exception | None = None
    """What went wrong while a network was set up; the ranks have been told to stop."""
    links: list[LinkReport] = field(default_factory=list[LinkReport])
    """Found before the cell that is measured now."""

    def take(self, rank: int, line: str) -> None:
        """Take one line that a rank has printed. Runs in the thread that reads this rank, as long as it lives."""
        said: dict[str, Any] = {"kind": ""}
        if rank == 0 and line.startswith(MARK):
            said = json.loads(line.removeprefix(MARK))
        if said["kind"] == "want":
            self.error = answer(self.folder, said, self._set_up) or self.error
            return
        if said["kind"] == "cell":
            found = {"links": [asdict(link) for link in self.links], "links_wrong": link_faults(self.links)}
            line = MARK + json.dumps({**said, **found, "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())})
        self.progress.take(rank, line)
        if said["kind"] == "cell":
            number, in_all = len(self.progress.records), len(self.setup.cells)
            self.progress.note(f"{_title(said)}: measured in {said['took_s']:.0f} s, cell {number} of {in_all}")
        if said["kind"] in ("cell", "train"):
            self.keep(self.progress.records)

    def _set_up(self, wanted: int) -> None:
        if self.cluster is None:
            return
        if self.limits is not None:
            self.cluster.reshape(without_limits(self.limits) if wanted == OPEN else self.limits)
            return
        cell = None if wanted == OPEN else self.setup.cells[wanted]
        rate, delay = ("none", "0ms") if cell is None else (cell.rate, cell.delay)
        self.cluster.reshape(topology_from_flags(self.num_hosts, rate, delay, [], 1, 0.0))
        if cell is None:
            return
        self.links = self.cluster.check_links()
        if not link_faults(self.links):
            return
        # Not an error: half an hour of measuring must not end with one cell. The tables say it beside the cell.
        self.progress.note(f"links are not what was asked for: {'; '.join(link_faults(self.links))}")


def _title(cell: dict[str, Any]) -> str:
    slow = f", last host at {cell['slow_share']:g} of the others' speed" if cell["slow_share"] else ""
    return f"{cell['model']} at {cell['rate']}, {cell['delay']}{slow}"
