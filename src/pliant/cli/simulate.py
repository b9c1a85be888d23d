"""`pliant simulate`: what a step would take under a plan, on a network that need not be there."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pliant.algorithms.by_name import plan_of_text
from pliant.cli import inputs
from pliant.cli.racks import RacksOption, UplinkOption
from pliant.simulator import Simulated, simulate as simulate_plan, write_trace
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import format_bytes, format_time, parse_bytes

__all__ = ["simulate"]

_LEGS = 12
"""Segments of the critical path in a table."""


def simulate(
    plan: Annotated[str, typer.Argument(help="A plan's file, or an algorithm with settings: 'diloco(period=64)'.")],
    workload: inputs.WorkloadOption,
    topology: inputs.TopologyOption = None,
    hosts: inputs.HostsOption = 0,
    ranks: inputs.RanksOption = None,
    rate: inputs.RateOption = "",
    delay: inputs.DelayOption = "",
    racks: RacksOption = 0,
    uplink: UplinkOption = "",
    compute: inputs.ComputeOption = "",
    machine: inputs.MachineOption = "",
    staged: inputs.StagedOption = False,
    overheads: inputs.OverheadsOption = None,
    bucket: inputs.BucketOption = inputs.BUCKET,
    steps: Annotated[int, typer.Option(help="Steps of the makespan; 0: a period of the plan.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Chrome or Perfetto there.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results there.")] = None,
) -> None:
    """Predict the time of a training step, its waiting and its bytes. Needs no network and no model."""
    require_places(trace, json_file)
    training = inputs.read_workload(workload, compute)
    network = inputs.read_topology(topology, hosts, ranks, rate, delay, racks, uplink, machine)
    found = simulate_plan(
        plan_of_text(plan),
        training,
        network,
        overheads=inputs.read_overheads(overheads, machine, network, staged=staged),
        bucket_bytes=parse_bytes(bucket),
        steps=steps,
        slowdown=inputs.slowdown_of(training, network),
    )
    costs = inputs.describe_overheads(overheads, machine, training, network)
    _show(plan, found)
    Console().print(costs, markup=False, highlight=False, soft_wrap=True)
    if trace is not None:
        write_trace(found.timeline, trace)
    if json_file is not None:
        write_atomically(json_file, json.dumps(_plain(found, costs), indent=1, allow_nan=False) + "\n")


def _show(name: str, found: Simulated) -> None:
    console = Console()
    table = Table.grid(padding=(0, 2))
    sent = found.sent_bytes
    table.add_row("step", format_time(found.step_s), f"mean over a period of {found.period}")
    share = found.compute_s / found.step_s if found.step_s else 1.0
    table.add_row("compute", format_time(found.compute_s), f"{share:.0%} of the step")
    table.add_row("exposed", format_time(found.exposed_s), f"of {format_time(found.exchange_s)} of exchanges")
    table.add_row("coding", format_time(found.codec_s), "and overhead, within exchanges")
    table.add_row("sent", format_bytes(max(sent)), f"a step by the busiest rank, of {len(sent)}")
    table.add_row("makespan", format_time(found.makespan_s))
    table.add_row("bottleneck", found.bottleneck)
    console.print(f"{name}: predicted", markup=False, highlight=False)
    console.print(table)
    legs = _legs(found)
    shown = " → ".join(f"{leg} {format_time(seconds)}" for leg, seconds in legs[:_LEGS])
    more = f" → … and {len(legs) - _LEGS} more" if len(legs) > _LEGS else ""
    console.print(f"critical path: {shown}{more}", markup=False, highlight=False)


def _legs(found: Simulated) -> list[tuple[str, float]]:
    """Return the critical path with all that is computed in a row as one."""
    legs: list[tuple[str, float]] = []
    for name, seconds in found.critical_path:
        kind = "compute" if name in ("forward", "backward", "optimize") else name
        if legs and legs[-1][0] == kind:
            legs[-1] = kind, legs[-1][1] + seconds
        else:
            legs.append((kind, seconds))
    return legs


def _plain(found: Simulated, costs: str) -> dict[str, Any]:
    numbers = ("step_s", "makespan_s", "compute_s", "exposed_s", "exchange_s", "codec_s", "period")
    return {
        **{name: getattr(found, name) for name in numbers},
        "sent_bytes": list(found.sent_bytes),
        "bottleneck": found.bottleneck,
        "critical_path": [{"name": name, "seconds": seconds} for name, seconds in found.critical_path],
        "counted": found.counted,
        "costs": costs,
    }
