"""Arms of `predictions.py`: models that compute for real, and algorithms in the grammar."""

from collections.abc import Callable

import torch
from torch import nn

from pliant_bench.models import TASKS, Gpt, TimingTask

VOCABULARY, LENGTH, LINES = 1024, 64, 3


def _gpt() -> nn.Module:
    return Gpt(VOCABULARY, width=192, length=LENGTH, heads=4, depth=4)


def _words(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = torch.randint(0, VOCABULARY, (2, LINES, LENGTH), generator=generator)
    return inputs, targets


MODELS: dict[str, Callable[[], TimingTask]] = {
    "cnn": lambda: TASKS["cnn"],
    "gpt": lambda: TimingTask(model=_gpt, batch=_words),
}
"""The laboratory's convolutional network, and its GPT with 2.0 M parameters, which 100 Mbit/s carry in a second."""

ALGORITHMS = (
    "allreduce",
    "bf16",
    "bytegrad",
    "qsgd(bits=4)",
    "terngrad",
    "natural",
    "int4",
    "onebit",
    "powersgd",
    "topk",
    "blocktopk",
    "randomk",
    "tasc",
    "owner",
    "late(bytegrad)",
    "every(2, qsgd)",
    "between_hosts(int4)",
    "local_sgd(period=4)",
    "diloco(period=8)",
    "diloco(period=4, averaging=int4)",
    "streaming_diloco(period=8, fragments=2)",
    "gossip",
    "choco",
    "dcd",
)
"""Of every family, with periods that a trial of some seconds holds."""
