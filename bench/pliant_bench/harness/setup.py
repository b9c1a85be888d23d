"""A benchmark as data that travels from the command line to the ranks. No torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pliant.spec.files import write_atomically
from pliant.spec.units import parse_time
from pliant_bench.harness.names import AUTO, BASELINE_ARMS, TORCH_ARMS, bare_name

__all__ = [
    "MARK",
    "MODELS",
    "OPEN",
    "STOP",
    "TRAINED",
    "Cell",
    "Setup",
    "answer",
    "check",
    "stage_file",
]

MARK = "pliant-bench: "
"""Begins a line that is a record, so that nothing else that a rank prints is taken for one."""

OPEN = -1
"""Asked for in the place of a cell's number: a network without limits."""
STOP = "stop"
"""Answered in the place of a network."""

MODELS = ("cnn", "chars", "wide", "vgg", "gpt", "lstm")
TRAINED = {"images": "cnn", "lm": "chars"}
"""Task -> the model that learns it."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model on one network of a grid."""

    model: str
    rate: str
    """Of each host's link, as in 100mbit; or none."""
    delay: str
    """Extra one-way delay, as in 5ms."""
    slow_share: float = 0.0
    """Speed of the last host, as a share of that of the others; 0: all are alike."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A benchmark: models x arms, on one network or on a grid of them."""

    mode: Literal["time", "train", "grid", "kill"]
    """Time steps on made-up data, or train on real data to an accuracy, or time steps in cells, or lose ranks."""
    models: tuple[str, ...]
    arms: tuple[str, ...]
    rounds: int = 7
    """Measured rounds in time mode; in each, all arms take turns."""
    steps_per_round: int = 2
    train_steps: int = 350
    max_epochs: float = 0.0
    """Shortens train_steps, and the schedule with it; 0: does not."""
    max_seconds: float = 0.0
    """Ends an arm at the next evaluation after so much training time; 0: never."""
    evaluate_every: int = 25
    seeds: tuple[int, ...] = (0,)
    task: Literal["images", "lm", "own"] = "images"
    """What is learned, in train mode."""
    target: float = 0.85
    """Accuracy, or perplexity, to reach in train mode."""
    slow_share: float = 0.0
    """Speed of the last host in train mode, as a share of that of the others; 0: all are alike."""
    cells: tuple[Cell, ...] = ()
    """What to measure in grid mode, in this order."""
    cell_seconds: float = 120.0
    """No further round of a cell begins that would end later."""
    num_points: int = 0
    """Losses of a rank, in kill mode."""
    lr: float = 0.0
    """Largest learning rate in train mode, but of arms that bring Adam of their own; 0: the task's."""
    batch: int = 64
    """Images, or lines of text, per rank and step, in train mode."""
    bucket_mb: float = 25.0
    data: str = ""
    """Folder of images or text, in train mode."""
    rate_bytes_per_s: float = 0.0
    own: str = ""
    """Function of the user's that makes model, optimizer and batches, as in my:make: then `models` has its name."""
    by_torchrun: bool = False
    """Whether torchrun has started the ranks, on machines of its own."""
    emulated: bool = False
    """Whether each rank has an interface of its own, so that the interface's bytes mean something."""
    provenance: dict[str, str] = field(default_factory=dict[str, str])


def stage_file(folder: Path, stage: int) -> Path:
    """Return the file whose appearance tells the ranks of a grid that a network is there."""
    return folder / f"stage{stage}"


def answer(folder: Path, wanted: Mapping[str, Any], set_up: Callable[[int], None]) -> Exception | None:
    """Set up the network that ranks want, and tell them that it is there.

    Args:
        folder: Where they look for the answer.
        wanted: What rank 0 has said: a `stage`, and the number of a `cell`, or `OPEN`.
        set_up: Called with that number.

    Returns:
        What went wrong, for who started the ranks to raise; they have been told to stop. None if nothing did.

    """
    wrong = None
    try:
        set_up(wanted["cell"])
    except Exception as error:  # noqa: BLE001  whatever it is, ranks must not wait
        wrong = error
    write_atomically(stage_file(folder, wanted["stage"]), "go" if wrong is None else STOP)
    return wrong


def check(setup: Setup) -> None:
    """Refuse settings that nothing could be measured with. Raises ValueError."""
    if setup.own:
        _check_own(setup)
    elif setup.mode == "train" and setup.models != (TRAINED[setup.task],):
        raise ValueError(
            f"--task {setup.task} trains the model {TRAINED[setup.task]}, but --models is {','.join(setup.models)}; "
            "leave --models out, or leave out --train and the target to time steps of the others."
        )
    if setup.mode == "time" and setup.slow_share:
        raise ValueError("--slow-host is for --train and --grid; step times without them are of hosts that are alike.")
    if setup.mode == "grid":
        _check_cells(setup)
    if setup.mode == "kill":
        _check_kill(setup)
    if not setup.arms:
        raise ValueError("compute alone does not train; name an algorithm that communicates.")
    for arm in setup.arms:
        if bare_name(arm) == AUTO and setup.mode != "train":
            raise ValueError(f"{arm} takes its time to choose, which only a whole training shows; add --train.")
    _check_numbers(setup)


def _check_own(setup: Setup) -> None:
    if setup.mode == "kill":
        raise ValueError(f"--kill trains a model of the laboratory, but --model is {setup.own}; leave one out.")
    if setup.max_epochs:
        raise ValueError("--max-epochs asks how long an epoch is, which --model does not tell; give --steps instead.")
    if "ddp-adam" in setup.arms:
        raise ValueError(f"ddp-adam brings Adam, but {setup.own} has an optimizer of its own, which all arms use.")


def _check_cells(setup: Setup) -> None:
    if not setup.cells:
        raise ValueError("the grid has no cells; name at least one rate and one delay.")
    shaped = [cell for cell in setup.cells if cell.rate != "none" or parse_time(cell.delay)]
    if shaped and not setup.emulated:
        raise ValueError(
            f"a grid changes links, here to {shaped[0].rate} with {shaped[0].delay}, but ranks of --local have none; "
            "leave --local out, or give --rates none --delays 0ms."
        )


def _check_kill(setup: Setup) -> None:
    if setup.emulated:
        raise ValueError("--kill strikes processes of this machine, but hosts were asked for; add --local.")
    foreign = [arm for arm in setup.arms if bare_name(arm) in (*TORCH_ARMS, *BASELINE_ARMS, AUTO)]
    if foreign:
        raise ValueError(
            f"--kill holds algorithms to what Pliant promises of a lost rank, but {foreign[0]} is not Pliant's; "
            "leave it out."
        )
    if setup.task != "images" or setup.models != (TRAINED["images"],):
        raise ValueError(
            f"--kill trains {TRAINED['images']} on images, but --task is {setup.task} and --models is "
            f"{','.join(setup.models)}; leave both out."
        )


def _check_numbers(setup: Setup) -> None:
    if setup.task == "images" and not 0 < setup.target <= 1:
        raise ValueError(f"--target-accuracy is {setup.target}, but it is a share: more than 0, at most 1.")
    if setup.task == "lm" and setup.target <= 1:
        raise ValueError(f"--target-perplexity is {setup.target}, but even who knows every character has 1.")
    for share in (setup.slow_share, *(cell.slow_share for cell in setup.cells)):
        if not 0 <= share < 1:
            raise ValueError(f"--slow-host is {share}, but it is a share of the others' speed: more than 0, below 1.")
    num_steps = setup.train_steps if setup.mode in ("train", "kill") else setup.rounds
    counts = {"--seeds": len(setup.seeds), "--steps": num_steps, "--batch": setup.batch}
    for flag, value in (counts | {"--evaluate-every": setup.evaluate_every}).items():
        if value < 1:
            raise ValueError(f"{flag} is {value}, but there must be at least one.")
    limits = {"--max-epochs": setup.max_epochs, "--max-seconds": setup.max_seconds}
    for flag, value in (limits | {"--cell-seconds": setup.cell_seconds}).items():
        if value < 0:
            raise ValueError(f"{flag} is {value}, but it cannot be negative.")
    if not 0 <= setup.lr < math.inf:
        raise ValueError(f"--lr is {setup.lr}, but a learning rate is finite and more than 0; 0 is the task's own.")
    if setup.lr and (setup.own or setup.mode != "train"):
        raise ValueError("--lr is for --train with a task of the laboratory; steps and --model have their own rate.")
    if setup.bucket_mb <= 0:
        raise ValueError(f"--bucket-mb is {setup.bucket_mb}, but a bucket holds something; DDP's own default is 25.")
