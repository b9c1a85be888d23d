"""`pliant bench`: starts hosts and workers, shows progress, and writes what came out."""

import json
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pliant.cli.bench.local import LocalHosts
from pliant.cli.bench.report import page, time_table, train_table
from pliant.cli.bench.results import time_rows, train_rows
from pliant.cli.bench.setup import ARMS, DEMO_ARMS, MODELS, Setup, known
from pliant.cli.emulate import topology_from_flags
from pliant.network import Cluster, emulated
from pliant.spec import save
from pliant.spec.files import write_atomically
from pliant.spec.units import parse_rate

__all__ = ["bench"]


def bench(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}.")] = "cnn",
    algorithms: Annotated[str, typer.Option(help=f"Of {', '.join(ARMS)}.")] = "compute,ddp,bytegrad,onebit",
    hosts: Annotated[int, typer.Option(help="Number of hosts, one rank each.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each host's link: 100mbit, or none.")] = "100mbit",
    delay: Annotated[str, typer.Option(help="Extra one-way delay.")] = "0ms",
    local: Annotated[bool, typer.Option("--local", help="Plain processes on loopback instead of hosts.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Train cnn on real images, instead of timing steps.")] = False,
    seeds: Annotated[int, typer.Option(help="Seeds per algorithm, with --train.")] = 1,
    steps: Annotated[int, typer.Option(help="Training steps with --train, measured rounds otherwise.")] = 0,
    batch: Annotated[int, typer.Option(help="Images per rank and step, with --train.")] = 64,
    target_accuracy: Annotated[float, typer.Option(help="Test accuracy to reach, with --train.")] = 0.85,
    bucket_mb: Annotated[float, typer.Option(help="DDP's bucket_cap_mb.")] = 4.0,
    data: Annotated[str, typer.Option(help="Folder with idx files or CIFAR-10 batches.")] = "",
    demo: Annotated[bool, typer.Option("--demo", help="The main job, with settings of its own.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything there.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a page with plots there.")] = None,
) -> None:
    """Compare algorithms in one run: step times in turns (A B A B), or training to an accuracy (--train, --demo)."""
    arms = DEMO_ARMS if demo else known(algorithms, ARMS, "algorithm")
    setup = Setup(
        mode="train" if train or demo else "time",
        models=known(models, MODELS, "model"),
        arms=arms,
        seeds=tuple(range(seeds)),
        target_accuracy=target_accuracy,
        batch=batch,
        bucket_mb=bucket_mb,
        data=data,
        rate_bytes_per_s=0.0 if local or rate == "none" else parse_rate(rate),
    )
    if steps and setup.mode == "train":
        setup = replace(setup, train_steps=steps)
    elif steps:
        setup = replace(setup, rounds=steps)
    network = "loopback, unshaped" if local else f"{hosts} hosts at {rate} with {delay} delay"
    setup = replace(setup, provenance=_provenance(network))
    topology = topology_from_flags(hosts, rate, delay, [], 1, 0.0)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with nullcontext(LocalHosts(hosts)) if local else emulated(topology) as cluster:
        records = _run(setup, cluster)
    result = {"setup": setup.__dict__, "records": records}
    _show(result)
    if demo:
        json_file, html_file = json_file or Path("results/demo.json"), html_file or Path("results/demo.html")
    if json_file is not None:
        write_atomically(json_file, json.dumps(result, indent=1, default=list) + "\n")
    if html_file is not None:
        write_atomically(html_file, page(result))
        print(f"plots: {html_file}")


def _provenance(network: str) -> dict[str, str]:
    return {
        "command": "pliant " + " ".join(sys.argv[1:]),
        "network": network,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _run(setup: Setup, cluster: Cluster | LocalHosts) -> list[dict[str, Any]]:
    """Start a worker per rank; return rank 0's records. Raises RuntimeError with the last words of who failed."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "setup.json", Path(folder) / "out.jsonl"
        out.touch()
        save(replace(setup, out=str(out)), path)
        progress = _Progress(out)
        last: dict[int, list[str]] = {}

        def on_line(rank: int, text: str) -> None:
            last.setdefault(rank, []).append(text)

        with _watched(progress):
            results = cluster.run([sys.executable, "-m", "pliant.cli.bench.worker", str(path)], on_line=on_line)
        failed = [r for r in results if r.exit_code and not r.ended_by_us] or [r for r in results if r.exit_code]
        if failed:
            words = "\n".join(last.get(failed[0].rank, [])[-25:])
            raise RuntimeError(f"rank {failed[0].rank} failed with exit code {failed[0].exit_code}:\n{words}")
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    return [line for line in lines if line["kind"] != "note"]


class _Progress:
    """The last line that rank 0 wrote, read anew for each frame; every line where nobody watches a terminal."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._start_s = time.monotonic()
        self._seen = 0

    def __rich__(self) -> Text:
        notes = self._notes()
        return Text(f"{self._clock()}{notes[-1] if notes else 'starting the workers ...'}")

    def print_new(self) -> None:
        """Print what has come since the last call."""
        notes = self._notes()
        for note in notes[self._seen :]:
            print(self._clock() + note, flush=True)
        self._seen = len(notes)

    def _clock(self) -> str:
        return f"{time.monotonic() - self._start_s:5.0f} s  "

    def _notes(self) -> list[str]:
        lines = [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [line["text"] for line in lines if line["kind"] == "note"]


@contextmanager
def _watched(progress: _Progress) -> Generator[None]:
    """Show progress while the block runs: one live line on a terminal, a line for each event elsewhere."""
    if sys.stderr.isatty():
        with _watched(progress):
            yield
        return
    done = threading.Event()

    def show() -> None:
        while not done.wait(1.0):
            progress.print_new()

    thread = threading.Thread(target=show)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        progress.print_new()


def _show(result: dict[str, Any]) -> None:
    setup, records = result["setup"], result["records"]
    for head, cells in (
        train_table(train_rows(records), setup["target_accuracy"]),
        time_table(time_rows(records, setup["rate_bytes_per_s"])),
    ):
        if cells:
            table = Table(*head, title=setup["provenance"]["network"], caption="* by formula, not counted by the run")
            for row in cells:
                table.add_row(*row)
            Console(width=None if sys.stdout.isatty() else 150).print(table)
