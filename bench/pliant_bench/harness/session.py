"""One benchmark from its setup to its files: starts hosts and workers, shows progress, writes what came out."""

import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pliant.network import EmulatedCluster, emulate_cluster
from pliant.network.emulate import RankResult
from pliant.spec import Topology, save
from pliant.spec.files import write_atomically
from pliant_bench.data.fetch import find_images, find_text
from pliant_bench.faults.points import records_of
from pliant_bench.harness.grid import NetworkController, cells_left, cells_of_file
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.setup import Setup, check
from pliant_bench.harness.torchrun import TorchrunHost, rank_of_torchrun
from pliant_bench.tables.report import page
from pliant_bench.tables.text import footnote, markdown, tables
from pliant_bench.tables.verdict import verdict_of
from pliant_bench.tables.winners import read_trained

__all__ = ["Files", "Hosts", "carry_out", "run_workers"]


class Hosts(Protocol):
    """Hosts that run a command once per rank."""

    def run(self, argv: Sequence[str], *, on_line: Callable[[int, str], None]) -> list[RankResult]:
        """Run it, wait, and hand on what ranks print."""
        ...


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files that are to be written, if any."""

    json: Path | None
    md: Path | None
    html: Path | None

    def of_demo(self) -> "Files":
        return replace(self, json=self.json or Path("results/demo.json"), html=self.html or Path("results/demo.html"))


def carry_out(setup: Setup, files: Files, accuracy: list[Path], topology: Topology, where: str) -> None:
    """Check a setup, measure what it asks for on its hosts, show it and write it. Under torchrun, rank 0 does so."""
    hosts = len(topology.hosts)
    if files.html is not None and find_spec("plotly") is None:  # said now, not when an hour of measuring is done
        raise RuntimeError("a page needs plotly, which is missing: pip install 'pliant[plot]', or leave out --html.")
    check(setup)
    trained = {arm: asdict(t) for arm, t in read_trained(accuracy).items()}
    find_before = {"grid": cells_of_file, "kill": records_of}.get(setup.mode)
    before = find_before(files.json, setup, hosts) if find_before is not None else []
    if setup.mode in ("train", "kill") and not setup.own:
        find = find_images if setup.task == "images" else find_text
        setup = replace(setup, data=str(find(setup.data)))
    setup = replace(setup, provenance=_provenance(_network(setup, hosts, where)))

    def result(records: list[dict[str, Any]]) -> dict[str, Any]:
        found = {"setup": asdict(setup), "hosts": hosts, "trained": trained, "records": [*before, *records]}
        return found | {"verdict": verdict_of(found)}

    def keep(records: list[dict[str, Any]]) -> None:
        if files.json is not None:
            write_atomically(files.json, json.dumps(result(records), indent=1) + "\n")

    left = replace(setup, cells=cells_left(setup.cells, before) if setup.mode == "grid" else ())
    records: list[dict[str, Any]] = []
    if setup.mode == "kill":
        from pliant_bench.faults.run_points import run_points  # here, since it needs torch, which takes seconds

        records = run_points(setup, hosts, before, keep)
    elif setup.mode != "grid" or left.cells:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        with _hosts(setup, topology) as cluster:
            records = run_workers(left, cluster, hosts, keep)
    if rank_of_torchrun():
        return  # rank 0 has the records
    keep(records)
    _show(result(records))
    _write(result(records), files)


def _hosts(setup: Setup, topology: Topology) -> AbstractContextManager[Hosts]:
    if (rank := rank_of_torchrun()) is not None:
        return nullcontext(TorchrunHost(rank))
    return emulate_cluster(topology) if setup.emulated else nullcontext(LocalHosts(len(topology.hosts)))


def _network(setup: Setup, hosts: int, where: str) -> str:
    if setup.mode == "grid":
        rates, delays = (
            ", ".join(dict.fromkeys(v)) for v in zip(*((c.rate, c.delay) for c in setup.cells), strict=True)
        )
        return f"{hosts} hosts at {rates} with {delays} delay" if setup.emulated else f"{hosts} ranks on loopback"
    slow = f", the last at {setup.slow_share:g} of the others' speed" if setup.slow_share else ""
    return (where if setup.emulated or setup.by_torchrun else "loopback, unshaped") + slow


def _write(result: dict[str, Any], files: Files) -> None:
    if files.md is not None:
        write_atomically(files.md, markdown(result))
    if files.html is not None:
        write_atomically(files.html, page(result))
        print(f"page with plots: {files.html}")


def _provenance(network: str) -> dict[str, str]:
    return {
        "command": shlex.join(["pliant", *sys.argv[1:]]),
        "network": network,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def run_workers(
    setup: Setup, cluster: Hosts, hosts: int, keep: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Start a worker per rank, keep records as they come, and return those of rank 0.

    Raises:
        RuntimeError: A rank failed; the message has its last words.

    """
    console = Console(stderr=True)
    progress = Progress(watched=console.is_terminal)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "setup.json"
        save(setup, path)
        emulated = cluster if isinstance(cluster, EmulatedCluster) else None
        limits = emulated.topology if emulated is not None and setup.mode == "train" else None
        conductor = NetworkController(
            setup=setup,
            num_hosts=hosts,
            cluster=emulated,
            limits=limits,
            folder=Path(folder),
            progress=progress,
            keep=keep,
        )
        live = Live(progress, refresh_per_second=4, transient=True, console=console)
        with live if console.is_terminal and not rank_of_torchrun() else nullcontext():
            argv = [sys.executable, "-m", "pliant_bench.harness.worker", str(path)]
            results = cluster.run(argv, on_line=conductor.take)
        if emulated is not None and limits is not None:
            emulated.reshape(limits)
    if conductor.error is not None:
        raise conductor.error
    failed = [r for r in results if r.exit_code and not r.ended_by_us] or [r for r in results if r.exit_code]
    if failed:
        words = progress.last_words(failed[0].rank)
        raise RuntimeError(f"rank {failed[0].rank} failed with exit code {failed[0].exit_code}:\n{words}")
    return progress.records


def _show(result: dict[str, Any]) -> None:
    for title, head, cells in tables(result):
        table = Table(title=title, caption=footnote(result))
        for name in head:
            table.add_column(name, justify="left" if name in ("arm", "model") else "right", no_wrap=True)
        for row in cells:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 150).print(table)
    if result["verdict"]:
        print(result["verdict"])
