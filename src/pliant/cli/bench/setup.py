"""What a benchmark is, as data that travels from the command line to the ranks. No torch."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ARMS", "DEMO_ARMS", "MODELS", "PLIANT_ARMS", "Setup", "known"]

MODELS = ("cnn", "vgg", "gpt", "lstm")
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
)
ARMS = ("compute", "ddp", "ddp-bf16", "ddp-powersgd", "ddp-adam", *PLIANT_ARMS)
"""compute: no communication. ddp-*: torch's DDP with its own hooks, and a bf16 hook, since torch's refuses Gloo."""

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
    train_steps: int = 150
    evaluate_every: int = 15
    seeds: tuple[int, ...] = (0,)
    target_accuracy: float = 0.85
    batch: int = 64
    """Images per rank and step, in train mode."""
    bucket_mb: float = 4.0
    data: str = ""
    """Folder of the user's own data; empty for the packaged set."""
    rate_bytes_per_s: float = 0.0
    out: str = ""
    """Where rank 0 writes its lines of JSON."""
    provenance: dict[str, str] = field(default_factory=dict[str, str])


def known(names: str, all_names: tuple[str, ...], noun: str) -> tuple[str, ...]:
    """Split a comma-separated list. Raises ValueError for a name that does not exist."""
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in chosen:
        if name not in all_names:
            raise ValueError(f"there is no {noun} {name!r}; there are {', '.join(all_names)}.")
    if not chosen:
        raise ValueError(f"name at least one {noun} of {', '.join(all_names)}.")
    return chosen
