"""The workload, the topology and the overheads that a user gives, by files or flags."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.racks import split_into_racks
from pliant.cli.topology_file import TOPOLOGY_HELP, read_topology_file
from pliant.netmodel import PRESETS, Overheads, overheads_of
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
    "StagedOption",
    "TopologyOption",
    "WorkloadOption",
    "describe_overheads",
    "read_machine",
    "read_overheads",
    "read_topology",
    "read_workload",
    "slowdown_of",
]

WorkloadOption = Annotated[
    str, typer.Option(help=f"A workload's file, or one of {', '.join(MODELS)}: then give --compute.")
]
TopologyOption = Annotated[
    Path | None, typer.Option(help=f"{TOPOLOGY_HELP}; instead of --hosts and all that goes with it.")
]
HostsOption = Annotated[int, typer.Option(help="Number of equal hosts.")]
RanksOption = Annotated[
    int | None,
    typer.Option("--ranks", "--ranks-per-host", help="Ranks on each host; if not given, those of the --machine, or 1."),
]
RateOption = Annotated[
    str,
    typer.Option(
        help="Rate of each host's link, both ways: 100mbit, 1gbit, none; if not given, that of the --machine."
    ),
]
DelayOption = Annotated[str, typer.Option(help="One-way delay of what a host receives: 5ms.")]
ComputeOption = Annotated[str, typer.Option(help="Time of forward and backward of a named model: 140ms.")]
OverheadsOption = Annotated[Path | None, typer.Option(help="Overheads fitted to steps, as pliant dataset writes them.")]
MachineOption = Annotated[
    str, typer.Option(help=f"A machine's file, as pliant probe writes it, or one of {', '.join(PRESETS)}.")
]
StagedOption = Annotated[
    bool, typer.Option("--staged", help="Messages to other hosts go through the host's memory, as Gloo has them.")
]
BucketOption = Annotated[str, typer.Option(help="DDP's buckets, where the plan does not say.")]
BUCKET = f"{BUCKET_BYTES}"
"""Default of BucketOption."""


_CORE_FLOPS = 2e11
"""Operations per second that no CPU core reaches."""
_GPU_LINK_BYTES_PER_S = 25e9 / 8
"""Rate of a host from which on its ranks are taken to be GPUs."""


def read_overheads(
    path: Path | None, machine: str = "", network: Topology | None = None, *, staged: bool = False
) -> Overheads:
    """Return overheads from their file, or those of a machine, of the machines that hosts name, or the defaults.

    Raises:
        ValueError: Both are given, or messages are to be staged on a machine that has no GPUs.

    """
    if path is not None and machine:
        raise ValueError(f"--overheads {path} says what a machine costs, and so does --machine {machine}; give one.")
    if staged and (path is not None or not machine):
        raise ValueError("--staged is for a --machine with GPUs, such as h100; name it.")
    if path is not None:
        return load(Overheads, path)
    if not machine:
        return Overheads() if network is None else overheads_of(network)
    found = read_machine(machine)
    if staged and not found.gpus:
        raise ValueError(f"--staged is for a machine with GPUs, but {machine} has none; leave it out.")
    return Overheads.of(dataclasses.replace(found, staged=staged or found.staged))


def read_machine(text: str) -> Machine:
    """Return a preset, or a machine from its file. Raises ValueError if it is neither."""
    if text in PRESETS:
        return PRESETS[text]
    if not Path(text).exists():
        raise ValueError(f"there is no machine {text!r}: it is neither a file nor one of {', '.join(PRESETS)}.")
    return load(Machine, text)


def describe_overheads(
    path: Path | None, machine: str = "", work: Workload | None = None, network: Topology | None = None
) -> str:
    """Return lines that say on what machine costs were measured, how far they may be off, and whether they fit."""
    if path is not None:
        return f"overheads: {path}, fitted to measured steps"
    told = {machine} if machine else {host.machine for host in network.hosts} if network else set[str]()
    names = sorted(name or "cpu-core" for name in told) if any(told) else []  # as `overheads_of` has it
    if not names:
        said = (
            "overheads: defaults of one CPU core and Gloo, not of your machines; measure one with pliant probe "
            f"--machine FILE, and give it with --machine FILE. {_held(Overheads().uncertainty)}"
        )
        return said + _misfit(work, network)
    known = [read_machine(name) for name in names]
    worst = max(each.uncertainty for each in known) if all(each.uncertainty for each in known) else 0.0
    origin = "by vendors' figures" if all(name in PRESETS for name in names) else "as measured"
    cure = "; measure yours with pliant probe --machine FILE" if origin == "by vendors' figures" else ""
    said = f"overheads: of {', '.join(names)}, {origin}{cure}. {_held(worst)}"
    return said if all(each.gpus for each in known) else said + _misfit(work, network)


def _held(uncertainty: float) -> str:
    if not uncertainty:
        return "Predictions with these were held against no measured steps, and may be off by more than half."
    return f"Predictions with these were off by {uncertainty:.0%} in the mean where steps were measured or published."


def _misfit(work: Workload | None, network: Topology | None) -> str:
    """Return a warning where costs are a CPU core's, but the model or the hosts are of GPUs; else nothing."""
    reasons: list[str] = []
    speed = re.search(r"at (\S+) Gflop/s", work.provenance) if work is not None else None
    if speed and float(speed[1]) * 1e9 > _CORE_FLOPS:
        reasons.append(f"the model computes at {float(speed[1]):.0f} Gflop/s")
    elif work is not None and "cuda" in work.provenance:
        reasons.append("the model was timed on CUDA")
    rates = [host.send_bytes_per_s for host in network.hosts] if network is not None else []
    if rates and max(rates) >= _GPU_LINK_BYTES_PER_S:
        reasons.append(f"a host has {max(rates) * 8e-9:.0f} Gbit/s")
    if not reasons:
        return ""
    return (
        f"\nwarning: {' and '.join(reasons)}, as GPUs have it, but these costs are a CPU core's, whose messages and "
        f"codecs take ten to a hundred times as long; name the machine, as --machine v100 does ({', '.join(PRESETS)})."
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


def slowdown_of(work: Workload, network: Topology) -> tuple[float, ...]:
    """Return how much longer each rank computes, as the workload was observed on as many ranks; else nothing."""
    return work.rank_factors if len(work.rank_factors) == network.num_ranks else ()


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

    Values that are not given are those of the machine, or one rank, no limit and no delay.
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
    of = read_machine(machine or "cpu-core")
    named = machine in PRESETS and of.gpus > 0
    own_bytes_per_s = of.interfaces_bytes_per_s if named else of.transport_bytes_per_s
    bytes_per_s = own_bytes_per_s if not rate else 0.0 if rate == "none" else parse_rate(rate)
    one = Host(
        name="host0",
        num_ranks=(of.gpus or 1) if ranks is None else ranks,
        machine=machine if named else "",
        send_bytes_per_s=bytes_per_s,
        receive_bytes_per_s=bytes_per_s,
        delay_s=parse_time(delay) if delay else 0.0,
    )
    hosts = tuple(dataclasses.replace(one, name=f"host{k}") for k in range(num_hosts))
    return split_into_racks(Topology(hosts=hosts, provenance="given"), racks, uplink)
