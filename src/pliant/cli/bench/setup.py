"""What a benchmark is, as data that travels from the command line to the ranks. No torch."""

import re
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ARMS", "DEMO_ARMS", "MARK", "MODELS", "PLIANT_ARMS", "Setup", "check", "known", "settings_of"]

MARK = "pliant-bench: "
"""Begins a line that is a record, so that nothing else that a rank prints is taken for one."""

MODELS = ("cnn", "wide", "vgg", "gpt", "lstm")
PLIANT_ARMS = (
    "allreduce",
    "bf16",
    "bytegrad",
    "qsgd",
    "qsgd4",
    "terngrad",
    "natural",
    "int4",
    "onebit",
    "onebit_adam",
    "powersgd",
    "topk",
    "topk_dgc",
    "blocktopk",
    "randomk",
    "late",
    "gossip",
    "choco",
    "dcd",
    "local_sgd",
    "diloco",
    "streaming_diloco",
    "sparse_loco",
    "async_average",
)
ARMS = ("compute", "ddp", "ddp-bf16", "ddp-powersgd", "ddp-adam", *PLIANT_ARMS)
"""compute: no communication. ddp-*: torch's DDP with its own hooks, and a bf16 hook, since torch's refuses Gloo."""

_SETTABLE = tuple(name for name in PLIANT_ARMS if name not in ("qsgd4", "topk_dgc", "onebit_adam", "late"))
"""Arms that are called with their settings; the others are settings already, or belong to an optimizer or to torch."""

DEMO_ARMS = (
    "ddp",
    "ddp-bf16",
    "ddp-powersgd",
    "bytegrad",
    "qsgd4",
    "onebit",
    "powersgd",
    "topk",
    "randomk",
    "onebit_adam",
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One cell of a benchmark: models x arms on one network."""

    mode: Literal["time", "train"]
    """Measure step times on made-up data, or train on real data to an accuracy."""
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
    target_accuracy: float = 0.85
    batch: int = 64
    """Images per rank and step, in train mode."""
    bucket_mb: float = 25.0
    data: str = ""
    """Folder of the images, in train mode."""
    rate_bytes_per_s: float = 0.0
    emulated: bool = False
    """Whether each rank has an interface of its own, so that the interface's bytes mean something."""
    provenance: dict[str, str] = field(default_factory=dict[str, str])


def known(names: str, all_names: tuple[str, ...], noun: str) -> tuple[str, ...]:
    """Split a comma-separated list; a name may have settings, as in topk(ratio=0.05).

    Raises ValueError for a name that does not exist, or settings that cannot be read.
    """
    chosen = tuple(name.strip() for name in re.split(r",(?![^(]*\))", names) if name.strip())
    for name in chosen:
        if settings_of(name)[0] not in all_names:
            raise ValueError(f"there is no {noun} {name!r}; there are {', '.join(all_names)}.")
    if not chosen:
        raise ValueError(f"name at least one {noun} of {', '.join(all_names)}.")
    return chosen


def settings_of(name: str) -> tuple[str, dict[str, int | float]]:
    """Split 'topk(ratio=0.05)' into the name and its settings. Raises ValueError where they cannot be read."""
    bare, opened, inside = name.partition("(")
    pairs = re.findall(r"(\w+)=([\d.e-]+)", inside)
    if opened and inside != ",".join(f"{key}={value}" for key, value in pairs) + ")":
        raise ValueError(f"the settings of {name!r} cannot be read; write them as in topk(ratio=0.05,ramp_steps=50).")
    return bare, {key: int(value) if value.isdigit() else float(value) for key, value in pairs}


def check(setup: Setup) -> None:
    """Refuse settings that nothing could be measured with. Raises ValueError."""
    if setup.mode == "train" and setup.models != ("cnn",):
        raise ValueError(
            f"training is for the model cnn, which learns real images, but --models is {','.join(setup.models)}; "
            "leave out --train and --target-accuracy to time steps of the others."
        )
    if not setup.arms:
        raise ValueError("compute alone does not train; name an algorithm that communicates.")
    for arm in setup.arms:
        bare, settings = settings_of(arm)
        if settings and bare not in _SETTABLE:
            raise ValueError(f"{arm!r} has settings, but {bare} takes none here; {', '.join(_SETTABLE)} do.")
    if not 0 < setup.target_accuracy <= 1:
        raise ValueError(f"--target-accuracy is {setup.target_accuracy}, but it is a share: more than 0, at most 1.")
    num_steps = setup.train_steps if setup.mode == "train" else setup.rounds
    for flag, value in {"--seeds": len(setup.seeds), "--steps": num_steps, "--batch": setup.batch}.items():
        if value < 1:
            raise ValueError(f"{flag} is {value}, but there must be at least one.")
    for flag, value in {"--max-epochs": setup.max_epochs, "--max-seconds": setup.max_seconds}.items():
        if value < 0:
            raise ValueError(f"{flag} is {value}, but it cannot be negative.")
    if setup.bucket_mb <= 0:
        raise ValueError(f"--bucket-mb is {setup.bucket_mb}, but a bucket holds something; DDP's own default is 25.")
