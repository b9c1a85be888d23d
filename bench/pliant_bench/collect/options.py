"""The options of `pliant collect`, each with what its help says. No torch."""

from pathlib import Path
from typing import Annotated

import typer

from pliant.planner import WORKLOADS

__all__ = [
    "Accuracy",
    "Budget",
    "Delays",
    "Export",
    "Hosts",
    "Local",
    "Micro",
    "Models",
    "Out",
    "Plans",
    "RanksPerHost",
    "Rates",
    "Seconds",
    "Seed",
    "Size",
    "SlowHost",
    "Timeout",
]

_PANEL = "Export"

Out = Annotated[
    list[Path], typer.Option(help="Folder of the trials; goes on from what is there. Repeatable with --export.")
]
Models = Annotated[str, typer.Option(help=f"Of {', '.join(WORKLOADS)}.")]
Rates = Annotated[str, typer.Option(help="Rates of each host's link: 100mbit, or none.")]
Delays = Annotated[str, typer.Option(help="Extra one-way delays.")]
Hosts = Annotated[int, typer.Option(help="Number of hosts.")]
RanksPerHost = Annotated[int, typer.Option(help="Ranks on each host.")]
Plans = Annotated[
    int,
    typer.Option(
        help="Different plans in each cell: the builders, then samples; 0: every plan that exchanges all layers alike."
    ),
]
Seconds = Annotated[float, typer.Option(help="No turn of a trial begins later than this.")]
Seed = Annotated[int, typer.Option(help="Of plans, their order, and gradients.")]
Budget = Annotated[float, typer.Option(help="Steps to the same accuracy that a plan may need, over those of DDP.")]
SlowHost = Annotated[
    float, typer.Option(help="Also, at each rate, with a last host at this share of the others' speed; 0: no.")
]
Size = Annotated[str, typer.Option(help="All gradients of a model together; larger models shrink to it.")]
Timeout = Annotated[str, typer.Option(help="A trial that takes longer has hung.")]
Local = Annotated[bool, typer.Option("--local", help="Plain processes on loopback instead of hosts.")]
Export = Annotated[
    Path | None,
    typer.Option(help="Make a data set there of what is in --out, and run nothing.", rich_help_panel=_PANEL),
]
Accuracy = Annotated[
    list[Path] | None,
    typer.Option(help="JSON of pliant bench --train, for convergence; repeatable.", rich_help_panel=_PANEL),
]
Micro = Annotated[
    list[Path] | None,
    typer.Option(help="JSON of benchmarks/codecs.py, for the speed of codecs; repeatable.", rich_help_panel=_PANEL),
]
