"""`pliant doctor`: look at the machines that it is started on, and say what would help there."""

import json
import statistics
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import torch.distributed as dist
import typer
from rich.console import Console
from rich.table import Table
from torch.distributed import ProcessGroup

from pliant.attachment.launch import speaks_for_all
from pliant.cli.doctor.verdict import Prospect, findings, prospects, sentence
from pliant.comm import Comm, new_comm
from pliant.comm.private_comm import self_comm
from pliant.engine.launcher_env import size_from_torchrun
from pliant.netmodel import Overheads
from pliant.network.connections import ConnectionRates, measure_by_connections
from pliant.network.machine import measure_machine
from pliant.network.probing import probe
from pliant.network.rank_facts import RankFacts, gather_facts
from pliant.network.rank_places import ranks_of_hosts
from pliant.spec import Machine, Topology, to_json
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import format_rate, format_time, parse_time

__all__ = ["Checkup", "doctor", "examine"]

_MOST_S = 60.0
_SHARES = {"machine": 0.1, "probe": 0.4, "connections": 0.4}
"""Parts of the budget; the rest is for meeting, facts and the simulation."""
_ALONE = (
    "This is one machine: there is no link to measure. On each machine of a cluster, start\n"
    "  torchrun --nnodes N --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint FIRST-HOST:29400 -m pliant doctor\n"
    "or see here what a slow network would mean: pliant emulate --hosts 4 --rate 100mbit -- pliant doctor"
)


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Result of a look at a cluster."""

    facts: list[RankFacts]
    topology: Topology
    machine: Machine
    connections: list[ConnectionRates]
    prospects: list[Prospect]
    findings: list[str]


def doctor(
    budget: Annotated[str, typer.Option(help="About how long it may take: at most 60s.")] = "30s",
    connections: Annotated[int, typer.Option(help="Connections to compare with one, between two hosts.")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything there.")] = None,
) -> None:
    """Look at machines and links without any training, and say what would help: alone, or once per rank.

    pliant doctor, torchrun ... -m pliant doctor, or pliant emulate --hosts 4 -- pliant doctor.
    """
    budget_s = parse_time(budget)
    if not 0 < budget_s <= _MOST_S:
        raise ValueError(f"--budget is {budget}, but a look takes more than 0s and at most {_MOST_S:g}s.")
    if connections < 2:
        raise ValueError(f"--connections is {connections}, but several are compared with one; give at least 2.")
    if speaks_for_all():
        require_places(json_file)
    with _comm(2 * _MOST_S) as comm:
        found = examine(comm, budget_s=budget_s, num_connections=connections)
        comm.barrier()
        if comm.rank == 0:
            _show(found)
            if json_file is not None:
                write_atomically(json_file, json.dumps(_plain(found), indent=1) + "\n")


def examine(
    comm: Comm, *, budget_s: float = 30.0, num_connections: int = 4, hosts: Sequence[Sequence[int]] | None = None
) -> Checkup:
    """Measure machines and links, and simulate standard workloads over them. Collective; the same on all ranks.

    Args:
        comm: Ranks to look at; over Gloo.
        budget_s: About how long it may take.
        num_connections: Connections that are compared with one.
        hosts: Ranks of each host, in order; as for `probe`.

    """
    names, places = ranks_of_hosts(comm, hosts)
    own = next(name for name, ranks in zip(names, places, strict=True) if comm.rank in ranks)
    facts = gather_facts(comm, own)
    machine = measure_machine(comm, budget_s=_SHARES["machine"] * budget_s, hosts=hosts)
    topology = probe(comm, budget_s=_SHARES["probe"] * budget_s, hosts=hosts)
    share_s = _SHARES["connections"] * budget_s
    rates = measure_by_connections(comm, num_connections=num_connections, budget_s=share_s, hosts=hosts)
    slowest = min(each.operations_per_s for each in facts)
    apart = len(places) > 1
    return Checkup(
        facts=facts,
        topology=topology,
        machine=machine,
        connections=rates,
        prospects=prospects(topology, Overheads.of(machine), slowest) if apart else [],
        findings=findings(facts, topology, rates),
    )


@contextmanager
def _comm(timeout_s: float) -> Generator[Comm]:
    """Yield the ranks that torchrun has started, or this process alone."""
    if not size_from_torchrun():
        comm = self_comm()
        try:
            yield comm
        finally:
            comm.close()
        return
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    try:
        comm = new_comm(cast(ProcessGroup, dist.group.WORLD), timeout_s)
        try:
            yield comm
        finally:
            comm.close()
    finally:
        dist.destroy_process_group()


def _plain(found: Checkup) -> dict[str, Any]:
    records = {name: json.loads(to_json(getattr(found, name))) for name in ("topology", "machine")}
    listed = {name: [asdict(e) for e in getattr(found, name)] for name in ("facts", "connections", "prospects")}
    sentences = [sentence(each) for each in found.prospects]
    return {**records, **listed, "findings": found.findings, "verdict": sentences}


def _show(found: Checkup) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(_machines(found.facts))
    if found.connections:
        console.print(_links(found))
    for line in found.findings:
        console.print(f"- {line}", markup=False, highlight=False)
    if not found.prospects:
        alone = _ALONE if len(found.facts) == 1 else "All ranks are on one host: there is no link to measure."
        console.print(f"\n{alone}", markup=False, highlight=False, soft_wrap=True)
        return
    speed = min(f.operations_per_s for f in found.facts) / 2e9
    console.print(
        f"\nWhat would help, simulated over these links with ranks that compute {speed:.3g} Gflop/s; steps to the same "
        "accuracy as measured with SGD on a small model. For yours: pliant plan --model my:make --topology FILE.",
        markup=False,
        highlight=False,
    )
    for each in found.prospects:
        console.print(f"- {sentence(each)}", markup=False, highlight=False)


def _machines(facts: Sequence[RankFacts]) -> Table:
    table = Table("rank", "host", "cores", "accelerators", "Gflop/s", "torch", "backends", "clock", title="machines")
    for f in facts:
        clock = "-" if f.rank == 0 else f"{f.clock_offset_s * 1e3:+.3g} ms, within {f.clock_error_s * 1e3:.2g}"
        named = ", ".join(f"{f.accelerators.count(name)} x {name}" for name in dict.fromkeys(f.accelerators)) or "none"
        speed = f"{f.operations_per_s / 1e9:.3g}"
        table.add_row(str(f.rank), f.host, str(f.num_cores), named, speed, f.torch, ", ".join(f.backends), clock)
    return table


def _links(found: Checkup) -> Table:
    delays = {host.name: host.delay_s for host in found.topology.hosts}
    latencies = {(link.source, link.target): link.latency_s for link in found.topology.links}
    several = found.connections[0].num_connections
    table = Table("link", "over one connection", f"over {several}", "one way", title="links, both ways at once")
    for r in found.connections:
        latency_s = latencies.get((r.source, r.target), statistics.mean((delays[r.source], delays[r.target])))
        one, more = format_rate(r.one_bytes_per_s), format_rate(r.several_bytes_per_s)
        table.add_row(f"{r.source} -> {r.target}", one, more, format_time(latency_s))
    return table
