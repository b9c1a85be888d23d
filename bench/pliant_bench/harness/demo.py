"""The main job of the README: what it trains with, on which network, for how long. No torch."""

from dataclasses import dataclass

__all__ = ["DEMO", "Demo"]


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Settings of ``pliant bench --demo`` that no flag has set.

    They are chosen so that communication is most of DDP's step, and all arms end within five minutes on two cores.
    """

    arms: tuple[str, ...]
    rate: str
    steps: int
    batch: int
    """Images per rank and step."""
    max_seconds: float
    """Training time after which an arm ends early: 32-bit DDP needs longer for all steps."""


DEMO = Demo(
    arms=(
        "ddp-bf16",
        "ddp",
        "ddp-powersgd",
        "bytegrad",
        "onebit",
        "powersgd",
        "local_sgd(period=4, averaging=int4)",
        "streaming_diloco",
        "auto",
    ),
    rate="50mbit",
    steps=250,
    batch=32,
    max_seconds=75.0,
)
"""Torch's DDP in 16 and 32 bits, its hook for low rank, and six of Pliant's that a user would choose among."""
