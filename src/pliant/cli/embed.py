"""Command `pliant embed`: a placement of embedding tables on the ranks, and its traffic."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from pliant.cli import inputs
from pliant.cli.curve import curve_figure
from pliant.cli.page import require_plotly, write_figure
from pliant.cli.racks import RacksOption, UplinkOption
from pliant.recsys.frequencies.criteo import CRITEO_BAGS, criteo_tables
from pliant.recsys.frequencies.logs import count_log
from pliant.recsys.frequencies.rows import Frequencies
from pliant.recsys.placement.candidates import Bits
from pliant.recsys.placement.place import EmbeddingPlacement, place_tables
from pliant.recsys.placement.problem import PlacementLimits
from pliant.recsys.placement.rates import Rates
from pliant.spec import Table, Topology, from_json, load, save, to_json
from pliant.spec.embedding import RowOptimizer
from pliant.spec.files import require_places, write_atomically
from pliant.spec.reading import read_json
from pliant.spec.units import format_bytes, format_time, parse_bytes, parse_time

__all__ = ["embed"]

_BUILT_IN = ("criteo", "criteo-multihot")
_SHARES = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.25, 1.6, 2.0, 3.0, 4.0)
"""Shares of the memory limit in the plot."""
_SHOWN = 30
_LARGEST_BAG = 1 << 20


def embed(
    tables: Annotated[str, typer.Argument(help=f"A JSON list of tables, or one of {', '.join(_BUILT_IN)}.")],
    topology: inputs.TopologyOption = None,
    hosts: inputs.HostsOption = 0,
    ranks: inputs.RanksOption = None,
    rate: inputs.RateOption = "",
    delay: inputs.DelayOption = "",
    racks: RacksOption = 0,
    uplink: UplinkOption = "",
    frequencies: Annotated[Path | None, typer.Option(help="Counted rows, as Frequencies.save writes them.")] = None,
    log: Annotated[Path | None, typer.Option(help="Or a click log, in Criteo's format, or with --label.")] = None,
    label: Annotated[str, typer.Option(help="Its column in a CSV or Parquet log; tables name the others.")] = "",
    skew: Annotated[float, typer.Option(help="Or Zipf's exponent of all tables.")] = 1.05,
    dim: Annotated[int, typer.Option(help="Of the built-in tables, or of those that do not say.")] = 64,
    memory: Annotated[str, typer.Option(help="Of each rank, for embeddings: 8GB.")] = "8GB",
    batch: Annotated[str, typer.Option(help="Samples of a rank in a step, to choose from: 512,1024,2048.")] = "1024",
    optimizer: Annotated[str, typer.Option(help=f"Of rows: {', '.join(get_args(RowOptimizer))}.")] = "rowwise_adagrad",
    bits: Annotated[str, typer.Option(help="Of numbers on the wire, to choose from: 32,16,8.")] = "32",
    max_staleness: Annotated[int, typer.Option(help="Steps that sums of rows on all ranks may be late.")] = 0,
    compute: Annotated[str, typer.Option(help="Most time of work for embeddings in a step: 20ms.")] = "",
    communication: Annotated[str, typer.Option(help="Most bytes that a rank may send in a step: 5MB.")] = "",
    dense: Annotated[str, typer.Option(help="Time of everything else in a step, for each sample: 10us.")] = "0us",
    overlap: Annotated[bool, typer.Option("--overlap", help="The next batch is prefetched.")] = False,
    machine: inputs.MachineOption = "",
    rates: Annotated[Path | None, typer.Option(help="What work on tables costs on the machine, as measured.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Also solve an integer program; for few tables.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw throughput against memory there, as a page.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan there.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results there.")] = None,
) -> None:
    """Find the layout of embedding tables that trains most samples a second within these limits, and say why."""
    where = inputs.read_topology(topology, hosts, ranks, rate, delay, racks, uplink, machine)
    _check(plot, optimizer)
    require_places(plot, out, json_file)
    wanted, bags = _tables(tables, dim)
    limits = PlacementLimits(
        memory_bytes=parse_bytes(memory),
        max_staleness=max_staleness,
        bits=cast(tuple[Bits, ...], tuple(_numbers(bits, "--bits"))),
        sent_bytes=parse_bytes(communication) if communication else None,
        work_s=parse_time(compute) if compute else None,
    )
    placement = place_tables(
        wanted,
        _frequencies(frequencies, log, label, wanted, bags, skew),
        where,
        limits,
        batch_sizes=_numbers(batch, "--batch"),
        optimizer=cast(RowOptimizer, optimizer),
        rates=_rates(rates, machine, where),
        dense_sample_s=parse_time(dense),
        overlap=overlap,
        exact=exact,
    )
    _show(placement)
    if out is not None:
        save(placement.plan, out)
    points = _draw(plot, placement, limits) if plot is not None else []
    if json_file is not None:
        write_atomically(json_file, json.dumps(_plain(placement, points), indent=1, allow_nan=False) + "\n")


def _check(plot: Path | None, optimizer: str) -> None:
    if plot is not None:
        require_plotly()
        if plot.suffix != ".html":
            raise ValueError(f"--plot is {plot}, but a plot is a page; name it .html.")
    if optimizer not in get_args(RowOptimizer):
        raise ValueError(f"--optimizer is {optimizer}, but rows are updated by {', '.join(get_args(RowOptimizer))}.")


def _rates(path: Path | None, machine: str, network: Topology) -> Rates:
    """Return rates from their file, or the defaults; overheads are the file's, unless a machine is named."""
    rates = load(Rates, path) if path is not None else Rates()
    measured = path is not None and not machine
    return rates if measured else replace(rates, overheads=inputs.read_overheads(None, machine, network))


def _tables(text: str, dim: int) -> tuple[list[Table], list[float]]:
    """Return the tables, and the mean of ids in a bag of each."""
    if text in _BUILT_IN:
        sizes = [float(size) if text == "criteo-multihot" else 1.0 for size in CRITEO_BAGS]
        return list(criteo_tables(dim)), sizes
    if not Path(text).exists():
        raise ValueError(f"there are no tables {text!r}: it is neither a file nor one of {', '.join(_BUILT_IN)}.")
    listed: Any = read_json(text)
    if not isinstance(listed, list) or not listed:
        raise ValueError(
            f'{text} should be a list of tables, such as [{{"name": "user", "num_rows": 1000, "bag": 1}}].'
        )
    names = [f.name for f in fields(Table)]
    tables: list[Table] = []
    bags: list[float] = []
    for k, entry in enumerate(cast(list[Any], listed)):
        one = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
        unknown = sorted(set(one) - {*names, "bag"})
        if unknown or not {"name", "num_rows"} <= set(one):
            raise ValueError(
                f"{text}: table {k} has {sorted(one)}, but needs name and num_rows, and may have bag (ids in one), "
                f"{', '.join(name for name in names if name not in ('name', 'num_rows'))}."
            )
        bag = one.pop("bag", 1)
        if type(bag) not in (int, float) or not 0 < bag < _LARGEST_BAG:
            raise ValueError(f"{text}: table {k} has bags of {bag!r} ids, but the mean is a number above 0.")
        bags.append(float(bag))
        try:
            tables.append(from_json(Table, json.dumps({"pliant": "Table", "format": 1, "dim": dim, **one})))
        except ValueError as error:
            raise ValueError(f"{text}: table {k}: {error}") from None
    return tables, bags


def _frequencies(
    path: Path | None, log: Path | None, label: str, tables: list[Table], bags: list[float], skew: float
) -> Frequencies:
    if log is not None and path is not None:
        raise ValueError(f"rows are counted in {log}, but also given by {path}; name one of them.")
    if log is not None:
        return count_log(log, {table.name: table.num_rows for table in tables}, label=label)
    if path is not None:
        return Frequencies.load(path)
    names, rows = [table.name for table in tables], [table.num_rows for table in tables]
    return Frequencies.zipf(rows, skew, pooling=bags, names=names)


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} is {text!r}; write whole numbers with commas, as in 512,1024.") from None
    return found


def _show(placement: EmbeddingPlacement) -> None:
    console = Console()
    reasons = placement.reasons()
    table = Shown("table", "rows", "dim", "layout", "homes", "hot rows", "moved", "next best", box=None)
    for each in sorted(reasons, key=lambda each: -each.moved_bytes)[:_SHOWN]:
        table.add_row(
            escape(each.name),
            f"{each.num_rows:,}",
            str(each.dim),
            each.family + (f", {each.layout.bits} bits" if each.layout.bits < 32 else ""),
            ", ".join(map(str, each.layout.homes)),
            f"{each.layout.num_hot:,}" if each.layout.num_hot else "",
            format_bytes(each.moved_bytes),
            f"{each.runner_up} {format_time(each.runner_up_s)}" if each.runner_up else "",
        )
    console.print(table)
    if len(reasons) > _SHOWN:
        console.print(f"and {len(reasons) - _SHOWN} more tables that move less", highlight=False)
    console.print(placement.explain(), markup=False, highlight=False)
    if len(placement.others) > 1:
        tried = ", ".join(
            f"{batch}: {speed:,.0f}" if speed else f"{batch}: nothing fits" for batch, speed in placement.others
        )
        console.print(f"Samples per second by batch of a rank: {tried}", highlight=False)


def _draw(plot: Path, placement: EmbeddingPlacement, limits: PlacementLimits) -> list[tuple[float, float | None]]:
    points = placement.curve([limits.memory_bytes * share for share in _SHARES])
    plan = placement.plan
    title = f"{len(plan.tables)} tables on {plan.num_ranks} ranks: throughput by memory"
    write_figure(plot, title, curve_figure(title, points, (limits.memory_bytes, placement.samples_per_s)))
    return points


def _plain(placement: EmbeddingPlacement, points: list[tuple[float, float | None]]) -> dict[str, Any]:
    chosen = placement.chosen
    return {
        "samples_per_s": chosen.samples_per_s,
        "step_s": chosen.cost.total_s,
        "hidden_s": chosen.cost.hidden_s,
        "parts_s": dict(chosen.cost.parts_s),
        "memory_bytes": chosen.memory.total.tolist(),
        "sent_bytes": chosen.sent_bytes.tolist(),
        "batch_sizes": [{"batch_size": batch, "samples_per_s": speed} for batch, speed in placement.others],
        "alike": {
            name: {"step_s": each.cost.total_s, "fits": each.excess(placement.problem.limits) == 0}
            for name, each in placement.alike.items()
        },
        "tables": [asdict(each) for each in placement.reasons()],
        "throughput_by_memory": [{"memory_bytes": x, "samples_per_s": y} for x, y in points],
        "plan": json.loads(to_json(placement.plan)),
    }
