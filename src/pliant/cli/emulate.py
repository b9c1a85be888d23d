"""`pliant emulate`: a command, once per rank, on emulated hosts."""

import dataclasses
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pliant.cli.racks import RacksOption, UplinkOption, split_into_racks
from pliant.cli.topology_file import TOPOLOGY_HELP, read_topology_file
from pliant.network import LinkReport, RankResult, emulate_cluster
from pliant.network.changes import Change, parse_changes
from pliant.network.link_check import require_links
from pliant.network.shaping import LEAST_BURST
from pliant.network.tcp_settings import CONGESTION, TcpSettings, with_send_buffer
from pliant.spec import Host, Topology
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import format_rate, format_time, parse_bytes, parse_rate, parse_time

__all__ = ["emulate", "require_command", "run_on", "show_failures", "topology_from_flags", "with_tcp"]

_BURST = f"{LEAST_BURST // 1000}KB"


def topology_from_flags(
    num_hosts: int, rate: str, delay: str, slow: list[str], ranks_per_host: int, cpus_per_host: float
) -> Topology:
    """Return equal hosts, but for those that `slow`, as in '2:0.5', gives a share of the rate."""
    if num_hosts < 1:
        raise ValueError(f"--hosts is {num_hosts}, but there must be at least one.")
    shares = dict.fromkeys(range(num_hosts), 1.0)
    for text in slow:
        index, _, share = text.partition(":")
        if (
            not index.isdigit()
            or int(index) not in shares
            or not share.replace(".", "", 1).isdigit()
            or not float(share)
        ):
            raise ValueError(
                f"--slow {text!r} must name a host, 0..{num_hosts - 1}, and a share of its rate, as in 2:0.5."
            )
        shares[int(index)] = float(share)
    bytes_per_s = 0.0 if rate == "none" else parse_rate(rate)
    if slow and not bytes_per_s:
        raise ValueError("--slow takes a share of a rate, but --rate is none; give a rate.")
    hosts = tuple(
        Host(
            name=f"host{k}",
            num_ranks=ranks_per_host,
            send_bytes_per_s=bytes_per_s * share,
            receive_bytes_per_s=bytes_per_s * share,
            delay_s=parse_time(delay),
            cpu_share=cpus_per_host,
        )
        for k, share in shares.items()
    )
    return Topology(hosts=hosts, provenance="given")


def emulate(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    hosts: Annotated[int, typer.Option(help="Number of hosts.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of each host's link, both ways: 100mbit, 1gbit, none.")] = "100mbit",
    delay: Annotated[str, typer.Option(help="Extra one-way delay of what a host receives: 5ms.")] = "0ms",
    slow: Annotated[list[str] | None, typer.Option(help="HOST:SHARE of the rate, repeatable: 2:0.5.")] = None,
    ranks_per_host: Annotated[int, typer.Option("--ranks", "--ranks-per-host", help="Ranks on each host.")] = 1,
    cpus_per_host: Annotated[float, typer.Option(help="CPUs that each host may use; 0: all.")] = 0.0,
    racks: RacksOption = 0,
    uplink: UplinkOption = "",
    topology: Annotated[str, typer.Option(help=f"{TOPOLOGY_HELP}; instead of the options above.")] = "",
    scale: Annotated[float, typer.Option(help="Factor of all rates of a topology.")] = 1.0,
    change: Annotated[
        list[str] | None, typer.Option(help="Change links later, repeatable: 'at 60s: 2-3 10mbit'.")
    ] = None,
    congestion: Annotated[str, typer.Option(help="TCP's congestion control on all hosts.")] = CONGESTION,
    idle_restart: Annotated[
        bool, typer.Option(help="Whether TCP starts slowly after a pause (tcp_slow_start_after_idle).")
    ] = True,
    tcp_wmem: Annotated[str, typer.Option(help="Largest send buffer of a connection: 32MB; 0: the machine's.")] = "0",
    timeout: Annotated[str, typer.Option(help="End everything after this long; 0s: never.")] = "0s",
    burst: Annotated[str, typer.Option(help="What a link lets pass at once after a pause, at least.")] = _BURST,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="When a rank fails the others go on; no rank hosts the store.")
    ] = False,
    restart: Annotated[int, typer.Option(help="Start a failed rank again, up to so often, with --elastic.")] = 0,
    check: Annotated[bool, typer.Option(help="Measure the links before the run.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write links and results there.")] = None,
) -> None:
    """Run a command once per rank on emulated hosts: own network namespaces, real TCP, shaped links.

    The environment is torchrun's, so a script that calls init_process_group("gloo") runs as it is.
    """
    if topology:
        _refuse_flags_beside(topology, context)
        cluster_spec = read_topology_file(topology)
    else:
        cluster_spec = topology_from_flags(hosts, rate, delay, slow or [], ranks_per_host, cpus_per_host)
        cluster_spec = split_into_racks(cluster_spec, racks, uplink)
    cluster_spec = with_tcp(cluster_spec if scale == 1 else cluster_spec.scaled(scale), idle_restart, tcp_wmem)
    timeout_s = parse_time(timeout)
    require_command(command)
    if restart and not elastic:
        raise ValueError(f"--restart {restart} brings ranks back to others that go on; add --elastic.")
    require_places(json_file)
    links, results = run_on(
        cluster_spec,
        command,
        check=check,
        elastic=elastic,
        burst_bytes=parse_bytes(burst),
        congestion=congestion,
        timeout_s=timeout_s,
        restarts=restart,
        changes=parse_changes(change or [], cluster_spec),
    )
    if json_file is not None:
        _write(json_file, TcpSettings.of(cluster_spec, congestion), links, results)
    failed = [bool(result.exit_code) for result in results]
    if any(failed):
        show_failures(results)
    if all(failed) if elastic else any(failed):
        sys.exit(1)


def with_tcp(topology: Topology, idle_restart: bool, tcp_wmem: str) -> Topology:
    """Return a topology with the settings of TCP that flags ask for; without them with its own."""
    window_bytes = with_send_buffer(parse_bytes(tcp_wmem)) if tcp_wmem != "0" else topology.window_bytes
    return dataclasses.replace(
        topology, restarts_slowly=topology.restarts_slowly and idle_restart, window_bytes=window_bytes
    )


def require_command(command: Sequence[str]) -> None:
    """Raise ValueError for a command that begins with an option, which was meant for us."""
    if command[0].startswith("-"):
        raise ValueError(f"the command after -- begins with {command[0]!r}, which is an option; put it before the --.")


def run_on(
    topology: Topology,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
    elastic: bool = False,
    burst_bytes: int = LEAST_BURST,
    congestion: str = CONGESTION,
    timeout_s: float = 0.0,
    restarts: int = 0,
    changes: Sequence[Change] = (),
) -> tuple[list[LinkReport], list[RankResult]]:
    """Run a command once per rank on emulated hosts, with its output prefixed, and wait.

    Args:
        topology: The hosts.
        command: What to run.
        environment: Variables beside those of this process and torchrun's.
        check: Whether to measure the links first, and show them.
        elastic: See `emulate_cluster`.
        burst_bytes: See there.
        congestion: See there.
        timeout_s: Time after which everything is ended; 0 for never.
        restarts: How often a failed rank is started again, if elastic.
        changes: Links that change while it runs.

    Returns:
        The links as they were measured, and how each rank has ended.

    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with emulate_cluster(topology, check=False, elastic=elastic, burst=burst_bytes, congestion=congestion) as cluster:
        links = cluster.check_links() if check else []
        if check:
            _show_links(Console(stderr=True), TcpSettings.of(topology, congestion), links)
            require_links(links)

        def on_line(rank: int, text: str) -> None:
            # One write a line: each rank's lines come from a thread of its own.
            print(f"[{topology.hosts[cluster.place(rank)[0]].name} {rank}] {text}\n", end="", flush=True)

        results = cluster.run(
            command, env=environment, on_line=on_line, timeout_s=timeout_s, restarts=restarts, changes=changes
        )
    return links, results


def _leave(signal_number: int, _: FrameType | None) -> None:
    sys.exit(128 + signal_number)


def _refuse_flags_beside(topology: str, context: typer.Context) -> None:
    names = ("hosts", "rate", "delay", "slow", "ranks_per_host", "cpus_per_host", "racks", "uplink")
    given = [f"--{name.replace('_', '-')}" for name in names if _is_given(context, name)]
    if given:
        raise ValueError(
            f"--topology {topology} and {', '.join(given)} both say what the hosts are like; use one of them."
        )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _show_links(console: Console, tcp: TcpSettings, links: list[LinkReport]) -> None:
    table = Table("link", "asked for", "found", "round trip", title=f"links; {tcp.text}")
    for link in links:
        wanted = format_rate(link.wanted_bytes_per_s) if link.wanted_bytes_per_s else "no limit"
        found = format_rate(link.found_bytes_per_s)
        table.add_row(escape(f"{link.source} -> {link.target}"), wanted, found, format_time(link.found_round_trip_s))
    console.print(table)


def show_failures(results: list[RankResult]) -> None:
    """Show how each rank has ended."""
    table = Table("rank", "host", "how it ended", title="ranks")
    for r in results:
        table.add_row(str(r.rank), escape(r.host), _how(r))
    Console(stderr=True).print(table)


def _how(result: RankResult) -> str:
    if result.ended_by_us:
        return "stopped: another rank failed, or the time was up"
    if result.exit_code < 0:
        return f"failed: killed by {signal.Signals(-result.exit_code).name}"
    return f"failed: exit code {result.exit_code}" if result.exit_code else "well"


def _write(path: Path, tcp: TcpSettings, links: list[LinkReport], results: list[RankResult]) -> None:
    body = {
        **dataclasses.asdict(tcp),
        "links": [dataclasses.asdict(x) for x in links],
        "ranks": [dataclasses.asdict(x) for x in results],
    }
    write_atomically(path, json.dumps(body, indent=2) + "\n")
