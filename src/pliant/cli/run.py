"""`pliant run`: an unchanged training script, relaxed while it trains."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pliant.attachment.launch import environment_of, launch_folder, read_verdict, run_command
from pliant.attachment.verdict import QUALITIES, RunOptions, RunVerdict
from pliant.cli.emulate import require_command, run_on, show_failures, topology_from_flags
from pliant.spec import SyncPlan, Topology, from_json, save
from pliant.spec.files import write_atomically
from pliant.spec.units import parse_time

__all__ = ["run"]

_EMULATED = {"hosts": "4", "rate": "100mbit", "delay": "0ms", "ranks": "1", "cpus": "0", "timeout": "0s"}
"""Words of --emulate, with the value of each that is not given."""


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
    emulate: Annotated[
        str, typer.Option(help=f"Run on emulated hosts: {','.join(f'{k}={v}' for k, v in _EMULATED.items())}.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write the plan that was chosen there, for relax().")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdict there.")] = None,
) -> None:
    """Run a training script as it is: measure its steps, try plans, keep the best, and say what came out.

    The script's DDP or FSDP2 model is found when its optimizer steps. Also under torchrun, Slurm or Ray:
    torchrun --nproc-per-node 2 -m pliant run -- python train.py, or pliant run -- torchrun --nproc-per-node 2 train.py.
    """
    require_command(command)
    options = RunOptions(quality=quality, unmeasured=unmeasured, plan_file=str(out or ""))
    hosts = _emulated(emulate) if emulate else None
    with launch_folder(options) as folder:
        own = environment_of(folder, os.environ)
        status = run_command(command, {**os.environ, **own}) if hosts is None else _on_hosts(*hosts, command, own)
        verdict = read_verdict(folder, status=status)
    if verdict is not None:
        _tell(verdict, out, json_file)
    sys.exit(status)


def _emulated(text: str) -> tuple[Topology, float]:
    """Return the hosts that --emulate asks for, and the time after which all is ended."""
    given: dict[str, str] = {}
    for pair in text.split(","):
        name, _, given[name] = pair.partition("=")
    if unknown := [name for name, value in given.items() if name not in _EMULATED or not value]:
        known = ",".join(f"{name}={value}" for name, value in _EMULATED.items())
        raise ValueError(f"--emulate has {unknown[0]!r}, but it takes words such as {known}.")
    asked = {**_EMULATED, **given}
    for name in ("hosts", "ranks"):
        if not asked[name].isdigit():
            raise ValueError(f"--emulate has {name}={asked[name]}, but that must be a whole number.")
    hosts, ranks, cpus = int(asked["hosts"]), int(asked["ranks"]), _number(asked["cpus"], "cpus")
    topology = topology_from_flags(hosts, asked["rate"], asked["delay"], [], ranks, cpus)
    return topology, parse_time(asked["timeout"])


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--emulate has {name}={text}, but that must be a number.") from None


def _on_hosts(topology: Topology, timeout_s: float, command: list[str], environment: dict[str, str]) -> int:
    """Run the command on emulated hosts, and return the exit status of the first rank that has failed by itself."""
    _, results = run_on(topology, command, environment=environment, timeout_s=timeout_s)
    failed = [result.exit_code for result in results if result.exit_code]
    if not failed:
        return 0
    show_failures(results)
    own = [result.exit_code for result in results if result.exit_code and not result.ended_by_us]
    status = own[0] if own else 1
    return status if status >= 0 else 128 - status


def _tell(verdict: RunVerdict, out: Path | None, json_file: Path | None) -> None:
    Console(stderr=True).print("\n" + verdict.text(), markup=False, highlight=False, soft_wrap=True)
    if out is not None and verdict.plan is not None:
        save(from_json(SyncPlan, json.dumps(verdict.plan)), out)
    if json_file is not None:
        write_atomically(json_file, verdict.as_json())
