"""The options of `pliant bench`, each with what its help says. No torch."""

from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.topology_file import TOPOLOGY_HELP
from pliant_bench.harness.names import ARMS
from pliant_bench.harness.setup import MODELS

__all__ = [
    "Accuracy",
    "Algorithms",
    "Batch",
    "BucketMb",
    "CellSeconds",
    "Data",
    "Delay",
    "Delays",
    "Demo",
    "EvaluateEvery",
    "Grid",
    "Hosts",
    "HtmlFile",
    "JsonFile",
    "Kill",
    "Local",
    "Lr",
    "MaxEpochs",
    "MaxSeconds",
    "MdFile",
    "Model",
    "Models",
    "Rate",
    "Rates",
    "Seeds",
    "SlowHost",
    "Steps",
    "TargetAccuracy",
    "TargetLoss",
    "TargetPerplexity",
    "Task",
    "TopologyName",
    "Train",
]

_PANEL = "Grid"

Models = Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}; cnn, or what the task trains, by default.")]
Model = Annotated[
    str,
    typer.Option(
        help="Your own instead: module:function, which returns model, optimizer, batches and, if the model does not "
        "return its loss, loss_fn(output, target); then, for --train, metric(model), of which less is better."
    ),
]
Algorithms = Annotated[
    str,
    typer.Option(
        help=f"Of {', '.join(ARMS)}; also topk(ratio=0.05), every(2, int4). "
        "compute,ddp,bytegrad,onebit by default; all of Pliant's with --kill."
    ),
]
Hosts = Annotated[int, typer.Option(help="Number of hosts, one rank each.")]
Rate = Annotated[str, typer.Option(help="Rate of each host's link, or none; 100mbit (--demo: 50mbit) by default.")]
Delay = Annotated[str, typer.Option(help="Extra one-way delay.")]
TopologyName = Annotated[str, typer.Option("--topology", help=f"{TOPOLOGY_HELP}; instead of hosts, rate and delay.")]
Local = Annotated[bool, typer.Option("--local", help="Plain processes on loopback instead of hosts.")]
Train = Annotated[bool, typer.Option("--train", help="Train on real data, instead of timing steps.")]
Task = Annotated[str, typer.Option(help="What to learn with --train: images, or lm, a model of English characters.")]
TargetAccuracy = Annotated[float | None, typer.Option(help="Test accuracy to reach, 0.85 by default; implies --train.")]
TargetPerplexity = Annotated[
    float | None, typer.Option(help="Held-out perplexity to reach with --task lm, 6 by default; implies --train.")
]
TargetLoss = Annotated[
    float | None, typer.Option(help="Metric of --model to reach, or without one its loss; implies --train.")
]
Seeds = Annotated[int, typer.Option(help="Seeds per algorithm, with --train.")]
Steps = Annotated[
    int,
    typer.Option(
        help="Training steps, or measured rounds; 0: 350 (lm: 500, --demo: 250, --kill: 60), or 7 (--grid: 3)."
    ),
]
EvaluateEvery = Annotated[int, typer.Option(help="Steps between evaluations, with --train.")]
MaxEpochs = Annotated[float, typer.Option(help="Fewer training steps if these epochs are fewer; 0: no.")]
MaxSeconds = Annotated[float, typer.Option(help="End an arm after so much training time; 0: never (--demo: 65).")]
Batch = Annotated[
    int | None,
    typer.Option(help="Images (64; --demo: 32, --kill: 16) or lines of text (16) per rank and step."),
]
Lr = Annotated[float, typer.Option(help="Largest learning rate, with --train; 0: the task's.")]
BucketMb = Annotated[float, typer.Option(help="DDP's bucket_cap_mb.")]
Data = Annotated[str, typer.Option(help="Folder with idx files or CIFAR-10 batches, or with text files for lm.")]
Demo = Annotated[bool, typer.Option("--demo", help="The main job: train with DDP and six algorithms, say who wins.")]
SlowHost = Annotated[
    float, typer.Option(help="Speed of the last host, as a share of the others', with --train or --grid; 0: like all.")
]
Grid = Annotated[bool, typer.Option("--grid", help="Time steps on many networks.", rich_help_panel=_PANEL)]
Rates = Annotated[str, typer.Option(help="Rates of the grid.", rich_help_panel=_PANEL)]
Delays = Annotated[str, typer.Option(help="Delays of the grid.", rich_help_panel=_PANEL)]
CellSeconds = Annotated[
    float, typer.Option(help="No round of a cell begins that would end later.", rich_help_panel=_PANEL)
]
Accuracy = Annotated[
    list[Path] | None,
    typer.Option(help="JSON of --train, for times to the target; repeatable.", rich_help_panel=_PANEL),
]
Kill = Annotated[
    int, typer.Option(help="Trainings in which a rank is killed or stopped at a random moment.", rich_help_panel="Loss")
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write everything there. --grid and --kill go on from what is there.")
]
MdFile = Annotated[Path | None, typer.Option("--md", help="Write the tables there, as markdown.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a page with plots there.")]
