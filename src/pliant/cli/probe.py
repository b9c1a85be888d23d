"""`pliant probe`: the links between the ranks of a real or emulated cluster."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, cast

import torch.distributed as dist
import typer
from rich.console import Console
from rich.table import Table
from torch.distributed import ProcessGroup

from pliant.attachment.launch import speaks_for_all
from pliant.cli.doctor.tcp import tcp_findings
from pliant.comm import new_comm
from pliant.network.machine import measure_machine
from pliant.network.probing import probe as measure_network
from pliant.network.rank_facts import gather_facts
from pliant.spec import Machine, Topology, save
from pliant.spec.files import require_places
from pliant.spec.units import format_rate, format_time, parse_time

__all__ = ["probe"]

_MACHINE_SHARE = 0.2
_TIMEOUT_S = 60.0


def probe(
    out: Annotated[Path | None, typer.Option("--out", "--json", help="Write the topology there.")] = None,
    machine: Annotated[Path | None, typer.Option(help="Write what the machine can do there.")] = None,
    budget: Annotated[str, typer.Option(help="About how long it may take.")] = "5s",
) -> None:
    """Measure the links between ranks, and what their machine can do: run it once per rank.

    pliant emulate --hosts 4 -- pliant probe --out topology.json, or torchrun --no-python ... pliant probe.
    """
    budget_s = parse_time(budget)
    if budget_s <= 0:
        raise ValueError(f"--budget is {budget}, but measuring takes time; give some seconds, such as 5s.")
    if speaks_for_all():
        require_places(out, machine)
    _meet(max(_TIMEOUT_S, 4 * budget_s))
    try:
        comm = new_comm(cast(ProcessGroup, dist.group.WORLD), max(_TIMEOUT_S, 4 * budget_s))
        try:
            able = measure_machine(comm, budget_s=_MACHINE_SHARE * budget_s)
            found = measure_network(comm, budget_s=(1 - _MACHINE_SHARE) * budget_s)
            name = next(host.name for k, host in enumerate(found.hosts) if comm.rank in found.ranks_of(k))
            settings = tcp_findings(gather_facts(comm, name, clocks=False), found)
            comm.barrier()
        finally:
            comm.close()
        if dist.get_rank() == 0:
            _hand_over(found, able, settings, out, machine)
    finally:
        dist.destroy_process_group()


def _meet(timeout_s: float) -> None:
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    except ValueError as error:
        raise ValueError(
            f"pliant probe runs once per rank, in the environment that torchrun sets, but was started without it "
            f"({error}); start it by `pliant emulate --hosts 4 -- pliant probe`, or, on each machine, by "
            "`torchrun --no-python ... pliant probe`."
        ) from error


def _hand_over(found: Topology, able: Machine, settings: Sequence[str], out: Path | None, machine: Path | None) -> None:
    if out is not None:
        save(found, out)
    if machine is not None:
        save(able, machine)
    console = Console()
    hosts = Table("host", "ranks", "sends", "receives", "delay", title="hosts, each at its best")
    for host in found.hosts:
        rates = (format_rate(r) if r else "no limit" for r in (host.send_bytes_per_s, host.receive_bytes_per_s))
        hosts.add_row(host.name, str(host.num_ranks), *rates, format_time(host.delay_s))
    console.print(hosts)
    if found.links:
        links = Table("link", "rate", "latency", title="links that differ from their hosts")
        for link in found.links:
            rate, latency = format_rate(link.bytes_per_s), format_time(link.latency_s)
            links.add_row(f"{link.source} -> {link.target}", rate, latency)
        console.print(links)
    if found.connections > 1:
        console.print(
            f"{found.connections} connections between each two ranks pay; "
            f"relax(..., connections={str(out or 'FILE')!r}) has as many.",
            markup=False,
            highlight=False,
        )
    for line in settings:
        console.print(line, markup=False, highlight=False)
    codecs = Table(
        "codec", "encode", "decode", title=f"machine: GB/s of float32; a message {format_time(able.message_s)}"
    )
    codecs.add_row("(copy)", f"{able.memory_bytes_per_s * 1e-9:.2f}", "")
    codecs.add_row("(add)", f"{able.add_bytes_per_s * 1e-9:.2f}", "")
    for name, encode_s in able.encode_s_per_element.items():
        codecs.add_row(name, f"{4e-9 / encode_s:.2f}", f"{4e-9 / able.decode_s_per_element[name]:.2f}")
    console.print(codecs)
    console.print(found.provenance, markup=False, highlight=False)
