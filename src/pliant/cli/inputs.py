"""The workload, the topology and the overheads that a user gives, by files or flags."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.racks import split_into_racks
from pliant.cli.topology_file import TOPOLOGY_HELP, read_topology_file
from pliant.netmodel import PRESETS, Overheads
from pliant.simulator import BUCKET_BYTES, MODELS, workload_named
from pliant.spec import Host, Machine, Topology, Workload, load
from pliant.spec.units import parse_rate, parse_time

__all__ = [
    "BUCKET",
    "BucketOption",
    "ComputeOption",
    "DelayOption",
    "HostsOption",
    "MachineOption",
    "OverheadsOption",
    "RanksOption",
    "RateOption",
    "TopologyOption",
    "WorkloadOption",
    "describe_overheads",
    "read_overheads",
    "read_topology",
    "read_workload",
]

WorkloadOption = Annotated[
    str, typer.Option(help=f"A workload's file, or one of {', '.join(MODELS)}: then give --compute.")
]
TopologyOption = Annotated[Path | None, typer.Option(help=f"{TOPOLOGY_HELP}; instead of the next four.")]
HostsOption = Annotated[int, typer.Option(help="Number of equal hosts.")]
RanksOption = Annotated[
    int | None,
    typer.Option("--ranks", "--ranks-per-host", help="Ranks on each host; if not given, those of the --machine, or 1."),
]
RateOption = Annotated[
    str, typer.Option(help="Rate of each host's link, both ways: 100mbit, 1gbit, none; that of the --machine.")
]
DelayOption = Annotated[str, typer.Option(help="One-way delay of what a host receives: 5ms.")]
ComputeOption = Annotated[str, typer.Option(help="Time of forward and backward of a named model: 140ms.")]
OverheadsOption = Annotated[Path | None, typer.Option(help="Overheads fitted to steps, as pliant dataset writes them.")]
MachineOption = Annotated[
    str, typer.Option(help=f"A machine's file, as pliant probe writes it, or one of {', '.join(PRESETS)}.")
]
BucketOption = Annotated[str, typer.Option(help="DDP's buckets, where the plan does not say.")]
BUCKET = f"{BUCKET_BYTES}"
"""Default of BucketOption."""


def read_overheads(path: Path | None, machine: str = "") -> Overheads:
    """Return overheads from their file, or those of a machine, or the defaults. Raises ValueError if both are given."""
    if path is not None and machine:
        raise ValueError(f"--overheads {path} says what a machine costs, and so does --machine {machine}; give one.")
    if path is not None:
        return load(Overheads, path)
    return Overheads.of(_machine(machine)) if machine else Overheads()


def _machine(text: str) -> Machine:
    if text in PRESETS:
        return PRESETS[text].machine
    if not Path(text).exists():
        raise ValueError(f"there is no machine {text!r}: it is neither a file nor one of {', '.join(PRESETS)}.")
    return load(Machine, text)


def describe_overheads(path: Path | None, machine: str = "") -> str:
    """Return a line that says whose overheads a prediction is made with."""
    if path is not None:
        return f"overheads: {path}"
    if machine in PRESETS:
        return f"overheads: of {machine}, by vendors' figures; measure yours with pliant probe --machine FILE"
    if machine:
        return f"overheads: {machine}"
    return (
        "overheads: defaults of one CPU core and Gloo, not of your machines; measure one with pliant probe --machine "
        "FILE, and give it with --machine FILE"
    )


def read_workload(text: str, compute: str) -> Workload:
    """Return a workload from its file, or a named one. Raises ValueError if it is neither, or has no times."""
    if text in MODELS:
        if not compute:
            raise ValueError(f"the model {text} has no times of its own; give --compute, such as --compute 140ms.")
        return workload_named(text, parse_time(compute))
    if compute:
        raise ValueError(f"--compute is for {', '.join(MODELS)}, but {text} is a file, and says how long it computes.")
    if not Path(text).exists():
        raise ValueError(f"there is no workload {text!r}: it is neither a file nor one of {', '.join(MODELS)}.")
    return load(Workload, text)


def read_topology(
    path: Path | None,
    num_hosts: int,
    ranks: int | None = None,
    rate: str = "",
    delay: str = "",
    racks: int = 0,
    uplink: str = "",
    machine: str = "",
) -> Topology:
    """Return a topology from its file, or one of equal hosts. Raises ValueError if both are given, or neither.

    Values that are not given are those of the preset `machine`, or one rank, no limit and no delay.
    """
    if (path is None) == (num_hosts == 0):
        raise ValueError(
            "say who there is, once: by --topology FILE, or by --hosts N with --ranks, --rate and --delay."
        )
    if path is not None:
        said = {"--ranks": ranks is not None, "--rate": rate, "--delay": delay, "--racks": racks, "--uplink": uplink}
        if twice := [flag for flag, value in said.items() if value]:
            raise ValueError(f"--topology {path} describes hosts and racks, and so does {twice[0]}; use one.")
        return read_topology_file(path)
    if num_hosts < 0:
        raise ValueError(f"--hosts is {num_hosts}, but there must be at least one.")
    preset = PRESETS.get(machine, PRESETS["cpu-core"])
    bytes_per_s = preset.bytes_per_s if not rate else 0.0 if rate == "none" else parse_rate(rate)
    one = Host(
        name="host0",
        num_ranks=preset.num_ranks if ranks is None else ranks,
        send_bytes_per_s=bytes_per_s,
        receive_bytes_per_s=bytes_per_s,
        delay_s=parse_time(delay) if delay else 0.0,
    )
    hosts = tuple(dataclasses.replace(one, name=f"host{k}") for k in range(num_hosts))
    return split_into_racks(Topology(hosts=hosts, provenance="given"), racks, uplink)
