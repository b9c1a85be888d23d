"""`pliant bench`: starts hosts and workers, shows progress, and writes what came out."""

import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pliant.cli.bench.fetch import find_images
from pliant.cli.bench.local import LocalHosts
from pliant.cli.bench.progress import Progress
from pliant.cli.bench.report import page
from pliant.cli.bench.setup import ARMS, DEMO_ARMS, MODELS, Setup, check, known
from pliant.cli.bench.tables import FOOTNOTE, markdown, tables
from pliant.cli.emulate import topology_from_flags
from pliant.network import Cluster, emulated
from pliant.spec import save
from pliant.spec.files import write_atomically
from pliant.spec.units import parse_rate, parse_time

__all__ = ["bench"]

_TARGET = 0.85


def bench(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}.")] = "cnn",
    algorithms: Annotated[
        str, typer.Option(help=f"Of {', '.join(ARMS)}; also topk(ratio=0.05).")
    ] = "compute,ddp,bytegrad,onebit",
    hosts: Annotated[int, typer.Option(help="Number of hosts, one rank each.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each host's link: 100mbit, or none.")] = "100mbit",
    delay: Annotated[str, typer.Option(help="Extra one-way delay.")] = "0ms",
    local: Annotated[bool, typer.Option("--local", help="Plain processes on loopback instead of hosts.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Train cnn on real images, instead of timing steps.")] = False,
    target_accuracy: Annotated[
        float | None, typer.Option(help=f"Test accuracy to reach, {_TARGET} by default; implies --train.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per algorithm, with --train.")] = 1,
    steps: Annotated[int, typer.Option(help="Training steps, or measured rounds without --train; 0: 350, or 7.")] = 0,
    max_epochs: Annotated[float, typer.Option(help="Fewer training steps if these epochs are fewer; 0: no.")] = 0.0,
    max_seconds: Annotated[float, typer.Option(help="End an arm after so much training time; 0: never.")] = 0.0,
    batch: Annotated[int, typer.Option(help="Images per rank and step, with --train.")] = 64,
    bucket_mb: Annotated[float, typer.Option(help="DDP's bucket_cap_mb.")] = 25.0,
    data: Annotated[str, typer.Option(help="Folder with idx files or CIFAR-10 batches.")] = "",
    demo: Annotated[bool, typer.Option("--demo", help="The main job: train with ten algorithms.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything there.")] = None,
    md_file: Annotated[Path | None, typer.Option("--md", help="Write the tables there, as markdown.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a page with plots there.")] = None,
) -> None:
    """Compare algorithms in one run: step times in turns, or training to an accuracy (--train, --demo)."""
    training = train or demo or target_accuracy is not None
    emulating = not local
    setup = Setup(
        mode="train" if training else "time",
        models=known(models, MODELS, "model"),
        arms=_arms(DEMO_ARMS if demo else known(algorithms, ARMS, "algorithm"), training=training),
        seeds=tuple(range(seeds)),
        target_accuracy=_TARGET if target_accuracy is None else target_accuracy,
        max_epochs=max_epochs,
        max_seconds=max_seconds,
        batch=batch,
        bucket_mb=bucket_mb,
        emulated=emulating,
        rate_bytes_per_s=parse_rate(rate) if emulating and rate != "none" else 0.0,
        provenance=_provenance(f"{hosts} hosts at {rate} with {delay} delay" if emulating else "loopback, unshaped"),
    )
    if steps:
        setup = replace(setup, train_steps=steps) if training else replace(setup, rounds=steps)
    if demo:
        json_file, html_file = json_file or Path("results/demo.json"), html_file or Path("results/demo.html")
    if html_file is not None and find_spec("plotly") is None:  # said now, not when an hour of measuring is done
        raise RuntimeError("a page needs plotly, which is missing: pip install 'pliant[plot]', or leave out --html.")
    check(setup)
    parse_time(delay)
    if training:
        setup = replace(setup, data=str(find_images(data)))
    topology = topology_from_flags(hosts, rate, delay, [], 1, 0.0)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with emulated(topology) if emulating else nullcontext(LocalHosts(hosts)) as cluster:
        records = _run(setup, cluster)
    result = {"setup": asdict(setup), "records": records}
    _show(result)
    _write(result, json_file, md_file, html_file)


def _write(result: dict[str, Any], json_file: Path | None, md_file: Path | None, html_file: Path | None) -> None:
    if json_file is not None:
        write_atomically(json_file, json.dumps(result, indent=1) + "\n")
    if md_file is not None:
        write_atomically(md_file, markdown(result))
    if html_file is not None:
        write_atomically(html_file, page(result))
        print(f"page with plots: {html_file}")


def _arms(names: tuple[str, ...], *, training: bool) -> tuple[str, ...]:
    """Leave compute out of a training: it is timed there in any case, but its ranks would learn apart."""
    return tuple(name for name in names if not training or name != "compute")


def _provenance(network: str) -> dict[str, str]:
    return {
        "command": shlex.join(["pliant", *sys.argv[1:]]),
        "network": network,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _run(setup: Setup, cluster: Cluster | LocalHosts) -> list[dict[str, Any]]:
    """Start a worker per rank; return rank 0's records. Raises RuntimeError with the last words of who failed."""
    console = Console(stderr=True)
    progress = Progress(watched=console.is_terminal)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "setup.json"
        save(setup, path)
        live = Live(progress, refresh_per_second=4, transient=True, console=console)
        with live if console.is_terminal else nullcontext():
            argv = [sys.executable, "-m", "pliant.cli.bench.worker", str(path)]
            results = cluster.run(argv, on_line=progress.take)
    failed = [r for r in results if r.exit_code and not r.ended_by_us] or [r for r in results if r.exit_code]
    if failed:
        words = progress.last_words(failed[0].rank)
        raise RuntimeError(f"rank {failed[0].rank} failed with exit code {failed[0].exit_code}:\n{words}")
    return progress.records


def _show(result: dict[str, Any]) -> None:
    for title, head, cells in tables(result):
        table = Table(title=title, caption=FOOTNOTE)
        for name in head:
            table.add_column(name, justify="left" if name in ("arm", "model") else "right", no_wrap=True)
        for row in cells:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 150).print(table)
