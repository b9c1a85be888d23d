"""`pliant bench`: what the command line asks for, as a setup."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import typer

from pliant.cli.emulate import topology_from_flags
from pliant.cli.racks import RacksOption, UplinkOption, split_into_racks
from pliant.cli.topology_file import read_topology_file
from pliant.spec import Topology
from pliant.spec.units import parse_rate
from pliant_bench.harness import options
from pliant_bench.harness.demo import DEMO, filled
from pliant_bench.harness.grid import cells_of
from pliant_bench.harness.names import GRID_ARMS, PLIANT_ARMS, split, split_arms
from pliant_bench.harness.session import Files, carry_out
from pliant_bench.harness.setup import MODELS, TRAINED, Setup
from pliant_bench.harness.torchrun import size_of_torchrun

__all__ = ["bench"]

_TARGETS = {"images": 0.85, "lm": 6.0}
_TARGETS_OF: tuple[str, ...] = ("images", "lm", "own")
"""Tasks of --target-accuracy, --target-perplexity and --target-loss."""
_STEPS = {"images": 350, "lm": 500, "own": 350, "kill": 60}
_BATCHES = {"images": 64, "lm": 16, "own": 1, "kill": 16}
_ROUNDS = {"train": 7, "time": 7, "grid": 3, "kill": 7}
_COMPARED = "compute,ddp,bytegrad,onebit"
_ALGORITHMS = {"train": _COMPARED, "time": _COMPARED, "grid": _COMPARED, "kill": ",".join(PLIANT_ARMS)}


def bench(
    context: typer.Context,
    models: options.Models = "",
    model: options.Model = "",
    algorithms: options.Algorithms = "",
    hosts: options.Hosts = 4,
    rate: options.Rate = "",
    delay: options.Delay = "0ms",
    racks: RacksOption = 0,
    uplink: UplinkOption = "",
    topology: options.TopologyName = "",
    local: options.Local = False,
    train: options.Train = False,
    task: options.Task = "images",
    target_accuracy: options.TargetAccuracy = None,
    target_perplexity: options.TargetPerplexity = None,
    target_loss: options.TargetLoss = None,
    seeds: options.Seeds = 1,
    steps: options.Steps = 0,
    evaluate_every: options.EvaluateEvery = 25,
    max_epochs: options.MaxEpochs = 0.0,
    max_seconds: options.MaxSeconds = 0.0,
    batch: options.Batch = None,
    lr: options.Lr = 0.0,
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
    files = Files(json=json_file, md=md_file, html=html_file)
    rate, steps, batch, max_seconds = filled(rate, steps, batch, max_seconds, demo=demo)
    asked = (target_accuracy, target_perplexity, target_loss)
    mode = _mode(training=train or demo or any(each is not None for each in asked), grid=grid, kill=kill)
    place = _place(context, mode, hosts, rate, delay, racks, uplink, topology, local=local)
    learned = _learned(context, task, model)
    names = _models(models, model, learned, mode)
    kept: dict[str, Any] = {"max_epochs": max_epochs, "max_seconds": max_seconds, "evaluate_every": evaluate_every}
    kept |= {"cell_seconds": cell_seconds, "bucket_mb": bucket_mb, "data": data, "slow_share": slow_host}
    setup = Setup(
        mode=mode,
        models=names,
        arms=_arms(DEMO.arms if demo else split_arms(algorithms or _ALGORITHMS[mode]), mode),
        rounds=steps or _ROUNDS[mode] if mode != "train" else _ROUNDS[mode],
        train_steps=steps or _STEPS["kill" if kill else learned],
        seeds=tuple(range(seeds)),
        target=_target(task, model, asked, train=train),
        cells=cells_of(names, _list(rates), _list(delays), slow_host) if grid else (),
        batch=_BATCHES["kill" if kill else learned] if batch is None else batch,
        **place.facts() | kept | dict[str, Any](own=model, lr=lr, task=learned, num_points=kill),
    )
    carry_out(setup, files.of_demo() if demo else files, accuracy or [], place.topology, place.words)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Hosts of a benchmark, and what they are in words."""

    topology: Topology
    words: str
    emulated: bool
    by_torchrun: bool = False
    rate_bytes_per_s: float = 0.0

    def facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("emulated", "by_torchrun", "rate_bytes_per_s")}


def _place(
    context: typer.Context,
    mode: str,
    hosts: int,
    rate: str,
    delay: str,
    racks: int,
    uplink: str,
    named: str,
    *,
    local: bool,
) -> _Place:
    if size := size_of_torchrun():
        _refuse(
            context,
            *("hosts", "rate", "delay", "racks", "uplink", "topology", "local"),
            because=f"torchrun has started {size} ranks",
        )
        if mode in ("grid", "kill"):
            raise ValueError(f"--{mode} changes links or loses ranks, but those here are torchrun's; start it alone.")
        topology = topology_from_flags(size, "none", "0ms", [], 1, 0.0)
        return _Place(topology=topology, words=f"{size} ranks of torchrun", emulated=False, by_torchrun=True)
    if named:
        because = f"--topology {named} says what the hosts are like"
        _refuse(
            context, *("hosts", "rate", "delay", "racks", "uplink", "local", "grid", "kill", "demo"), because=because
        )
        return _Place(topology=read_topology_file(named), words=named, emulated=True)
    if (racks or uplink) and (local or mode in ("grid", "kill")):
        raise ValueError(
            "--racks and --uplink shape emulated hosts on one network, but --local, --grid and --kill do not."
        )
    start = ("none", "0ms") if mode == "grid" else (rate, delay)  # where ranks start; each cell has its own
    topology = split_into_racks(topology_from_flags(hosts, *start, [], 1, 0.0), racks, uplink)
    between = f" in {racks} racks with {uplink} between them" if racks else ""
    return _Place(
        topology=topology,
        words=f"{hosts} hosts{between} at {rate} with {delay} delay",
        emulated=not local,
        rate_bytes_per_s=parse_rate(rate) if not local and rate != "none" else 0.0,
    )


def _refuse(context: typer.Context, *names: str, because: str) -> None:
    """Raise ValueError for an option that was given and would not be read."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"--{name.replace('_', '-')} is given, but {because}; leave it out.")


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


def _learned(context: typer.Context, task: str, model: str) -> Literal["images", "lm", "own"]:
    """Return the task that is learned."""
    if model:
        _refuse(context, "models", "task", "data", "batch", "demo", because=f"--model {model} brings model and data")
        return "own"
    if task not in TRAINED:
        raise ValueError(f"there is no task {task!r}; there are {', '.join(TRAINED)}.")
    return "lm" if task == "lm" else "images"


def _models(models: str, own: str, task: str, mode: str) -> tuple[str, ...]:
    return (own,) if own else split(models or (TRAINED[task] if mode == "train" else "cnn"), MODELS, "model")


def _target(task: str, own: str, asked: Sequence[float | None], *, train: bool) -> float:
    """Return the target of what is learned, and refuse that of something else."""
    learned = "own" if own else task
    given: dict[str, float | None] = dict(zip(_TARGETS_OF, asked, strict=True))
    if any(value is not None for kind, value in given.items() if kind != learned):
        raise ValueError(
            f"{f'--model {own}' if own else f'--task {task}'} has another target; --target-accuracy is for images, "
            "--target-perplexity for lm, --target-loss for --model."
        )
    value = given.get(learned)
    if value is None and own and train:
        raise ValueError(f"--train --model {own} has no target; say which loss is to be reached: --target-loss 0.5.")
    return _TARGETS.get(learned, 0.0) if value is None else value


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _arms(names: tuple[str, ...], mode: str) -> tuple[str, ...]:
    """Leave compute out of a training, where it is timed in any case; give a grid what it compares with."""
    if mode == "grid":
        return tuple(dict.fromkeys((*GRID_ARMS, *names)))
    return tuple(name for name in names if mode != "train" or name != "compute")
