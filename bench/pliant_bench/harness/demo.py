"""The main job of the README: what it trains with, on which network, for how long. No torch."""

from dataclasses import dataclass

__all__ = ["DEMO", "Demo", "filled"]


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Settings of ``pliant bench --demo`` that no flag has set.

    They are chosen so that communication is most of DDP's step. All arms end in about five minutes on two idle cores.
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
        "auto(quality=1.1)",
    ),
    rate="50mbit",
    steps=250,
    batch=32,
    max_seconds=65.0,
)
"""Torch's DDP in 16 and 32 bits, its hook for low rank, and six of Pliant's that a user would choose among."""


def filled(
    rate: str, steps: int, batch: int | None, max_seconds: float, *, demo: bool
) -> tuple[str, int, int | None, float]:
    """Return rate, steps, batch and limit of time, with the demo's, or a plain rate, where none is given."""
    if not demo:
        return rate or "100mbit", steps, batch, max_seconds
    return rate or DEMO.rate, steps or DEMO.steps, batch or DEMO.batch, max_seconds or DEMO.max_seconds
