"""`pliant bench`: starts hosts and workers, shows progress, and writes what came out."""

import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pliant.cli.emulate import topology_from_flags
from pliant.cli.racks import RacksOption, UplinkOption, split_into_racks
from pliant.network import EmulatedCluster, emulate_cluster
from pliant.spec import Topology, save
from pliant.spec.files import write_atomically
from pliant.spec.units import parse_rate
from pliant_bench.data.fetch import find_images, find_text
from pliant_bench.faults.points import records_of
from pliant_bench.harness import options
from pliant_bench.harness.demo import DEMO
from pliant_bench.harness.grid import NetworkController, cells_left, cells_of, cells_of_file
from pliant_bench.harness.local import LocalHosts
from pliant_bench.harness.names import GRID_ARMS, PLIANT_ARMS, split, split_arms
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.setup import MODELS, TRAINED, Setup, check
from pliant_bench.tables.report import page
from pliant_bench.tables.text import footnote, markdown, tables
from pliant_bench.tables.verdict import verdict_of
from pliant_bench.tables.winners import read_trained

__all__ = ["bench"]

_TARGETS = {"images": 0.85, "lm": 6.0}
_STEPS = {"images": 350, "lm": 500, "kill": 60}
_BATCHES = {"images": 64, "lm": 16, "kill": 16}
_ROUNDS = {"train": 7, "time": 7, "grid": 3, "kill": 7}
_COMPARED = "compute,ddp,bytegrad,onebit"
_ALGORITHMS = {"train": _COMPARED, "time": _COMPARED, "grid": _COMPARED, "kill": ",".join(PLIANT_ARMS)}


def bench(
    models: options.Models = "",
    algorithms: options.Algorithms = "",
    hosts: options.Hosts = 4,
    rate: options.Rate = "",
    delay: options.Delay = "0ms",
    racks: RacksOption = 0,
    uplink: UplinkOption = "",
    local: options.Local = False,
    train: options.Train = False,
    task: options.Task = "images",
    target_accuracy: options.TargetAccuracy = None,
    target_perplexity: options.TargetPerplexity = None,
    seeds: options.Seeds = 1,
    steps: options.Steps = 0,
    evaluate_every: options.EvaluateEvery = 25,
    max_epochs: options.MaxEpochs = 0.0,
    max_seconds: options.MaxSeconds = 0.0,
    batch: options.Batch = None,
    bucket_mb: options.BucketMb = 25.0,
    data: options.Data = "",
    demo: options.Demo = False,
    slow_host: options.SlowHost = 0.0,
    grid: options.Grid = False,
    rates: options.Rates = "10mbit,100mbit,1gbit",
    delays: options.Delays = "0ms,5ms,20ms",
    cell_seconds: options.CellSeconds = 120.0,
    accuracy: options.Accuracy = None,
    kill: options.Kill = 0,
    json_file: options.JsonFile = None,
    md_file: options.MdFile = None,
    html_file: options.HtmlFile = None,
) -> None:
    """Compare algorithms in one run: step times, training (--train, --demo), networks (--grid), losses (--kill)."""
    files = _Files(json=json_file, md=md_file, html=html_file)
    if demo:
        rate, steps, batch = rate or DEMO.rate, steps or DEMO.steps, batch or DEMO.batch
        max_seconds = max_seconds or DEMO.max_seconds
    rate = rate or "100mbit"
    training = train or demo or target_accuracy is not None or target_perplexity is not None
    mode = _mode(training=training, grid=grid, kill=kill)
    setup = Setup(
        mode=mode,
        models=split(models or (TRAINED.get(task, "") if mode == "train" else "cnn"), MODELS, "model"),
        arms=_arms(DEMO.arms if demo else split_arms(algorithms or _ALGORITHMS[mode]), mode),
        rounds=steps or _ROUNDS[mode] if mode != "train" else _ROUNDS[mode],
        train_steps=steps or _STEPS["kill" if kill else _task(task)],
        max_epochs=max_epochs,
        max_seconds=max_seconds,
        evaluate_every=evaluate_every,
        seeds=tuple(range(seeds)),
        task=_task(task),
        target=_target(task, target_accuracy, target_perplexity),
        slow_share=slow_host,
        cells=cells_of(split(models or "cnn", MODELS, "model"), _list(rates), _list(delays), slow_host) if grid else (),
        cell_seconds=cell_seconds,
        num_points=kill,
        batch=_BATCHES["kill" if kill else _task(task)] if batch is None else batch,
        bucket_mb=bucket_mb,
        data=data,
        emulated=not local,
        rate_bytes_per_s=parse_rate(rate) if not local and rate != "none" else 0.0,
    )
    topology, where = _hosts(setup, hosts, rate, delay, racks, uplink)
    _carry_out(setup, files.of_demo() if demo else files, accuracy or [], topology, where)


def _hosts(setup: Setup, hosts: int, rate: str, delay: str, racks: int, uplink: str) -> tuple[Topology, str]:
    """Return the hosts, and what they are in words."""
    if (racks or uplink) and (not setup.emulated or setup.mode in ("grid", "kill")):
        raise ValueError(
            "--racks and --uplink shape emulated hosts on one network, but --local, --grid and --kill do not."
        )
    start = ("none", "0ms") if setup.mode == "grid" else (rate, delay)  # where ranks start; each cell has its own
    topology = split_into_racks(topology_from_flags(hosts, *start, [], 1, 0.0), racks, uplink)
    between = f" in {racks} racks with {uplink} between them" if racks else ""
    return topology, f"{hosts} hosts{between} at {rate} with {delay} delay"


@dataclass(frozen=True, kw_only=True)
class _Files:
    """Files that are to be written, if any."""

    json: Path | None
    md: Path | None
    html: Path | None

    def of_demo(self) -> "_Files":
        return replace(self, json=self.json or Path("results/demo.json"), html=self.html or Path("results/demo.html"))


def _carry_out(setup: Setup, files: _Files, accuracy: list[Path], topology: Topology, where: str) -> None:
    hosts = len(topology.hosts)
    if files.html is not None and find_spec("plotly") is None:  # said now, not when an hour of measuring is done
        raise RuntimeError("a page needs plotly, which is missing: pip install 'pliant[plot]', or leave out --html.")
    check(setup)
    trained = {arm: asdict(t) for arm, t in read_trained(accuracy).items()}
    find_before = {"grid": cells_of_file, "kill": records_of}.get(setup.mode)
    before = find_before(files.json, setup, hosts) if find_before is not None else []
    if setup.mode in ("train", "kill"):
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
        with emulate_cluster(topology) if setup.emulated else nullcontext(LocalHosts(hosts)) as cluster:
            records = _run(left, cluster, hosts, keep)
    keep(records)
    _show(result(records))
    _write(result(records), files)


def _network(setup: Setup, hosts: int, where: str) -> str:
    if setup.mode == "grid":
        rates, delays = (
            ", ".join(dict.fromkeys(v)) for v in zip(*((c.rate, c.delay) for c in setup.cells), strict=True)
        )
        return f"{hosts} hosts at {rates} with {delays} delay" if setup.emulated else f"{hosts} ranks on loopback"
    slow = f", the last at {setup.slow_share:g} of the others' speed" if setup.slow_share else ""
    return (where if setup.emulated else "loopback, unshaped") + slow


def _write(result: dict[str, Any], files: _Files) -> None:
    if files.md is not None:
        write_atomically(files.md, markdown(result))
    if files.html is not None:
        write_atomically(files.html, page(result))
        print(f"page with plots: {files.html}")


def _mode(*, training: bool, grid: bool, kill: int) -> Literal["time", "train", "grid", "kill"]:
    if kill < 0:
        raise ValueError(f"--kill is {kill}, but it is a number of losses: 1 or more.")
    if kill and (training or grid):
        raise ValueError("--kill trains in its own way, but --grid or a training was asked for too; leave one out.")
    if training and grid:
        raise ValueError(
            "--grid times steps on many networks, but a training was asked for too; run one after the other."
        )
    return "kill" if kill else "grid" if grid else "train" if training else "time"


def _task(task: str) -> Literal["images", "lm"]:
    if task not in TRAINED:
        raise ValueError(f"there is no task {task!r}; there are {', '.join(TRAINED)}.")
    return "lm" if task == "lm" else "images"


def _target(task: str, accuracy: float | None, perplexity: float | None) -> float:
    """Return the target of a task, and refuse that of the other."""
    given, other = (accuracy, perplexity) if task == "images" else (perplexity, accuracy)
    if other is not None:
        raise ValueError(
            f"--task {task} has another target; --target-accuracy is for images, --target-perplexity for lm."
        )
    return _TARGETS[_task(task)] if given is None else given


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _arms(names: tuple[str, ...], mode: str) -> tuple[str, ...]:
    """Leave compute out of a training, where it is timed in any case; give a grid what it compares with."""
    if mode == "grid":
        return tuple(dict.fromkeys((*GRID_ARMS, *names)))
    return tuple(name for name in names if mode != "train" or name != "compute")


def _provenance(network: str) -> dict[str, str]:
    return {
        "command": shlex.join(["pliant", *sys.argv[1:]]),
        "network": network,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _run(
    setup: Setup, cluster: EmulatedCluster | LocalHosts, hosts: int, keep: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Start a worker per rank; return rank 0's records. Raises RuntimeError with the last words of who failed."""
    console = Console(stderr=True)
    progress = Progress(watched=console.is_terminal)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "setup.json"
        save(setup, path)
        conductor = NetworkController(
            setup=setup,
            num_hosts=hosts,
            cluster=cluster if isinstance(cluster, EmulatedCluster) else None,
            folder=Path(folder),
            progress=progress,
            keep=keep,
        )
        live = Live(progress, refresh_per_second=4, transient=True, console=console)
        with live if console.is_terminal else nullcontext():
            argv = [sys.executable, "-m", "pliant_bench.harness.worker", str(path)]
            results = cluster.run(argv, on_line=conductor.take)
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
