"""The plan, the workload, the topology and the costs that a user gives, by files or flags."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from pliant.algorithms.by_name import plan_of_text
from pliant.cli.racks import in_racks
from pliant.simulator import BUCKET_BYTES, MODELS, Costs, workload_named
from pliant.spec import Host, SyncPlan, Topology, Workload, load
from pliant.spec.units import parse_rate, parse_time

__all__ = [
    "BUCKET",
    "BucketOption",
    "ComputeOption",
    "CostsOption",
    "DelayOption",
    "HostsOption",
    "RanksOption",
    "RateOption",
    "TopologyOption",
    "WorkloadOption",
    "costs_from",
    "costs_given",
    "plan_given",
    "topology_given",
    "workload_given",
]

WorkloadOption = Annotated[
    str, typer.Option(help=f"A workload's file, or one of {', '.join(MODELS)}: then give --compute.")
]
TopologyOption = Annotated[Path | None, typer.Option(help="A topology's file, instead of the next four.")]
HostsOption = Annotated[int, typer.Option(help="Number of equal hosts.")]
RanksOption = Annotated[int, typer.Option("--ranks", "--ranks-per-host", help="Ranks on each host.")]
RateOption = Annotated[str, typer.Option(help="Rate of each host's link, both ways: 100mbit, 1gbit, none.")]
DelayOption = Annotated[str, typer.Option(help="One-way delay of what a host receives: 5ms.")]
ComputeOption = Annotated[str, typer.Option(help="Time of forward and backward of a named model: 140ms.")]
CostsOption = Annotated[Path | None, typer.Option(help="What everything but the links costs.")]
BucketOption = Annotated[str, typer.Option(help="DDP's buckets, where the plan does not say.")]
BUCKET = f"{BUCKET_BYTES}"
"""Default of BucketOption."""


def plan_given(text: str) -> SyncPlan:
    """Return a plan from its file, or that of an algorithm in the grammar, as in 'diloco(period=64)'."""
    return plan_of_text(text)


def costs_given(path: Path | None) -> Costs:
    """Return costs from their file, or the defaults."""
    return Costs() if path is None else load(Costs, path)


def costs_from(path: Path | None) -> str:
    """Return a line that says whose costs a prediction is of."""
    if path is not None:
        return f"costs: {path}"
    return (
        "costs: defaults of one CPU core and Gloo, not of your machines; fit theirs with pliant collect and "
        "pliant dataset, and give them with --costs FILE"
    )


def workload_given(text: str, compute: str) -> Workload:
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


def topology_given(
    path: Path | None, num_hosts: int, ranks: int, rate: str, delay: str, racks: int = 0, uplink: str = ""
) -> Topology:
    """Return a topology from its file, or one of equal hosts. Raises ValueError if both are given, or neither."""
    if (path is None) == (num_hosts == 0):
        raise ValueError(
            "say who there is, once: by --topology FILE, or by --hosts N with --ranks, --rate and --delay."
        )
    if path is not None:
        if racks or uplink:
            raise ValueError(f"--topology {path} says which racks there are, and so do --racks and --uplink; use one.")
        return load(Topology, path)
    if num_hosts < 0:
        raise ValueError(f"--hosts is {num_hosts}, but there must be at least one.")
    bytes_per_s = 0.0 if rate == "none" else parse_rate(rate)
    one = Host(
        name="host0",
        num_ranks=ranks,
        send_bytes_per_s=bytes_per_s,
        receive_bytes_per_s=bytes_per_s,
        delay_s=parse_time(delay),
    )
    hosts = tuple(dataclasses.replace(one, name=f"host{k}") for k in range(num_hosts))
    return in_racks(Topology(hosts=hosts, provenance="given"), racks, uplink)
