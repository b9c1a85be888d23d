"""`pliant run`: an unchanged training script, relaxed while it trains."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pliant.attachment.launch import environment_of, launch_folder, read_verdict, run_command, speaks_for_all
from pliant.attachment.verdict import QUALITIES, RunOptions, RunVerdict
from pliant.cli.emulate import require_command, run_on, show_failures, topology_from_flags, with_tcp
from pliant.cli.topology_file import read_topology_file
from pliant.network.tcp_settings import CONGESTION
from pliant.spec import SyncPlan, Topology, from_json, save
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import parse_time

__all__ = ["run"]

_EQUAL = {"hosts": "4", "rate": "100mbit", "delay": "0ms", "ranks": "1", "cpus": "0"}
"""Words of --emulate for equal hosts, with the value of each that is not given."""
_ANY = {"scale": "1", "congestion": CONGESTION, "idle_restart": "yes", "tcp_wmem": "0", "timeout": "0s"}
"""Words for any hosts, likewise."""
_EMULATED = {**_EQUAL, "world": "", **_ANY}
"""All words; `world` is a topology's name or file, in the place of equal hosts."""


_KNOWN = ",".join(f"{name}={value}" for name, value in {**_EMULATED, "world": "four-continents"}.items())


def run(
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    quality: Annotated[
        str,
        typer.Option(
            help=f"What a plan may cost: {', '.join(f'{k} ({v:g}x the steps)' for k, v in QUALITIES.items())}."
        ),
    ] = "1%",
    unmeasured: Annotated[
        bool, typer.Option("--unmeasured", help="With other optimizers than SGD, count on what was measured with SGD.")
    ] = False,
    experience: Annotated[
        str,
        typer.Option(
            help="File (.json) or folder of what earlier runs have found, which this one begins from and updates; "
            "cache: ~/.cache/pliant; none: nothing is kept."
        ),
    ] = "cache",
    emulate: Annotated[str, typer.Option(help=f"Run on emulated hosts: {_KNOWN}.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the plan that was chosen there, for relax().")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdict there.")] = None,
) -> None:
    """Run a training script as it is: measure its steps, try plans, keep the best, and say what came out.

    The script's DDP or FSDP2 model is found when its optimizer steps. Also under torchrun, Slurm or Ray:
    torchrun --nproc-per-node 2 -m pliant run -- python train.py, or pliant run -- torchrun --nproc-per-node 2 train.py.
    """
    require_command(command)
    if speaks_for_all():
        require_places(out, json_file)
    kept = experience if experience in ("cache", "none") else str(Path(experience).absolute())
    options = RunOptions(quality=quality, unmeasured=unmeasured, experience=kept, plan_file=str(out or ""))
    hosts = _emulated(emulate) if emulate else None
    with launch_folder(options) as folder:
        own = environment_of(folder, os.environ)
        status = run_command(command, {**os.environ, **own}) if hosts is None else _on_hosts(hosts, command, own)
        verdict = read_verdict(folder, status=status)
    if verdict is not None:
        _tell(verdict, out, json_file)
    sys.exit(status)


@dataclass(frozen=True, kw_only=True)
class _Emulated:
    """Hosts that --emulate asks for."""

    topology: Topology
    congestion: str
    timeout_s: float
    """Time after which all is ended; 0: never."""


def _emulated(text: str) -> _Emulated:
    """Return the hosts that --emulate asks for."""
    given: dict[str, str] = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name in given:
            raise ValueError(f"--emulate has {name}={given[name]} and {pair}; use one of them.")
        given[name] = value
    if unknown := [name for name, value in given.items() if name not in _EMULATED or not value]:
        raise ValueError(f"--emulate has {unknown[0]!r}, but it takes words such as {_KNOWN}.")
    asked = {**_EMULATED, **given}
    if asked["idle_restart"] not in ("yes", "no"):
        raise ValueError(f"--emulate has idle_restart={asked['idle_restart']}, but that must be yes or no.")
    topology, scale = _hosts_of(asked, given), _number(asked["scale"], "scale")
    topology = with_tcp(topology, asked["idle_restart"] == "yes", asked["tcp_wmem"])
    return _Emulated(
        topology=topology if scale == 1 else topology.scaled(scale),
        congestion=asked["congestion"],
        timeout_s=parse_time(asked["timeout"]),
    )


def _hosts_of(asked: Mapping[str, str], given: Mapping[str, str]) -> Topology:
    if asked["world"]:
        if both := [name for name in _EQUAL if name in given]:
            raise ValueError(
                f"--emulate has world={asked['world']} and {both[0]}={asked[both[0]]}, which both say what the hosts "
                "are like; use one of them."
            )
        return read_topology_file(asked["world"])
    for name in ("hosts", "ranks"):
        if not asked[name].isdigit():
            raise ValueError(f"--emulate has {name}={asked[name]}, but that must be a whole number.")
    hosts, ranks, cpus = int(asked["hosts"]), int(asked["ranks"]), _number(asked["cpus"], "cpus")
    return topology_from_flags(hosts, asked["rate"], asked["delay"], [], ranks, cpus)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--emulate has {name}={text}, but that must be a number.") from None


def _on_hosts(hosts: _Emulated, command: list[str], environment: dict[str, str]) -> int:
    """Run the command on emulated hosts, and return the exit status of the first rank that has failed by itself."""
    _, results = run_on(
        hosts.topology, command, environment=environment, congestion=hosts.congestion, timeout_s=hosts.timeout_s
    )
    failed = [result.exit_code for result in results if result.exit_code]
    if not failed:
        return 0
    show_failures(results)
    own = [result.exit_code for result in results if result.exit_code and not result.ended_by_us]
    status = own[0] if own else 1
    return status if status >= 0 else 128 - status


def _tell(verdict: RunVerdict, out: Path | None, json_file: Path | None) -> None:
    said = "" if out is None else _write_plan(verdict, out)
    Console(stderr=True).print(f"\n{verdict.text()}{said}", markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        write_atomically(json_file, verdict.as_json())


def _write_plan(verdict: RunVerdict, out: Path) -> str:
    """Write the plan that was adopted; return a line on a file of an earlier run where there is none."""
    if verdict.plan is not None:
        save(from_json(SyncPlan, json.dumps(verdict.plan)), out)
        return ""
    if not out.exists():
        return ""
    if not verdict.decided:
        return f"\n{out} is still that of an earlier run, since this one has not come to a decision."
    out.unlink()
    return f"\n{out}, of an earlier run, was removed, since this one has adopted no plan."
