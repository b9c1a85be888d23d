"""Text as windows of characters: of a folder of text files, or of Python's library, every tenth file held out."""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pliant_bench.data.fetch import DataMissingError
from pliant_bench.harness.metric import METRICS, Metric
from pliant_bench.harness.tasks import sample_batch, steps_per_epoch
from pliant_bench.models import CHARS_LENGTH, chars

__all__ = ["Text", "load_text", "python_text", "save_python_text"]

_HOLD_OUT = 10
_NOT_EVERYWHERE = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
_NUM_HELD_OUT = 2000
"""Windows to judge by, spread over all that is held out: more would take longer than they make surer."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """Windows of characters that a model reads, each with the next character as its target."""

    metric: ClassVar[Metric] = METRICS["lm"]
    lr: ClassVar[float] = 2e-3
    adam: ClassVar[bool] = True
    probe: ClassVar[int] = 500

    vocabulary: int
    """Characters of the training text, and one number for all others."""
    train: Tensor
    """uint8 (num, CHARS_LENGTH + 1)"""
    held_out: Tensor
    """uint8 (num, CHARS_LENGTH + 1)"""

    @property
    def num_held_out(self) -> int:
        """Windows to judge by."""
        return self.held_out.shape[0]

    def model(self) -> nn.Module:
        """Return a decoder of two blocks."""
        return chars(self.vocabulary)

    def batch(self, step: int, rank: int, size: int, num: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return a rank's windows of a step, and the same one character later, int64 (num, CHARS_LENGTH) each."""
        windows = self.train[sample_batch(self.train.shape[0], step, rank, size, num, seed)].long()
        return windows[:, :-1], windows[:, 1:]

    def steps_per_epoch(self, size: int, num: int) -> int:
        """Return the number of steps in which all ranks have whole batches."""
        return steps_per_epoch(self.train.shape[0], size, num)

    def tally(self, model: nn.Module, first: int, last: int) -> tuple[float, float]:
        """Return the nats that a range of held-out windows comes to, and its characters."""
        windows = self.held_out[first:last].long()
        logits, targets = model(windows[:, :-1]).flatten(0, -2), windows[:, 1:].flatten()
        return float(cross_entropy(logits, targets, reduction="sum")), float(targets.numel())


def load_text(folder: Path) -> Text:
    """Load the text files of a folder and the folders in it; by name, every tenth is held out.

    Raises:
        DataMissingError: There are too few files, or hardly any text in them.

    """
    paths = sorted(folder.rglob("*.txt"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    return _text_of(texts, folder, "text files (*.txt)")


def python_text() -> Text:
    """Return the source of Python's own standard library, about 10 M characters that every machine has.

    Tests, IDLE and installed packages are left out, since not every Python has them. Its files are read as ASCII.

    Raises:
        DataMissingError: This Python has no sources.

    """
    folder = Path(sysconfig.get_path("stdlib"))
    return _text_of(_sources(folder), folder, "sources (*.py)")


def save_python_text(folder: Path) -> None:
    """Write what `python_text` returns as a folder of text files, for a machine that has another Python.

    Raises:
        ValueError: The folder has files, which would be read as well.

    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ValueError(f"{folder} has files, which would be read with the text of Python; give an empty folder.")
    for number, text in enumerate(_sources(Path(sysconfig.get_path("stdlib")))):
        (folder / f"{number:05}.txt").write_text(text, encoding="utf-8")


def _sources(folder: Path) -> list[str]:
    paths = [
        path for path in sorted(folder.rglob("*.py")) if _NOT_EVERYWHERE.isdisjoint(path.relative_to(folder).parts)
    ]
    return [path.read_text(encoding="ascii", errors="replace") for path in paths]


def _text_of(texts: Sequence[str], folder: Path, what: str) -> Text:
    held_out = "\n".join(texts[_HOLD_OUT - 1 :: _HOLD_OUT])
    train = "\n".join(text for k, text in enumerate(texts) if k % _HOLD_OUT != _HOLD_OUT - 1)
    if min(len(held_out), len(train)) <= CHARS_LENGTH:
        raise DataMissingError(
            f"{folder} has {len(texts)} {what} with {len(train)} characters to learn and {len(held_out)} "
            f"held out, but every {_HOLD_OUT}th file is held out and both need more than {CHARS_LENGTH}; give a folder "
            "with more text with --data."
        )
    codes = np.unique(np.frombuffer(train.encode("utf-32-le"), np.uint32))[:255]
    windows = _windows(held_out, codes)
    spread = torch.linspace(0, windows.shape[0] - 1, min(windows.shape[0], _NUM_HELD_OUT)).long()
    return Text(vocabulary=len(codes) + 1, train=_windows(train, codes), held_out=windows[spread])


def _windows(text: str, codes: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> Tensor:
    """Return the text in pieces of CHARS_LENGTH characters and the one that follows, as numbers of the vocabulary."""
    found = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    numbers = np.minimum(np.searchsorted(codes, found), len(codes) - 1)
    numbers = np.where(codes[numbers] == found, numbers, len(codes)).astype(np.uint8)
    return torch.from_numpy(numbers).unfold(0, CHARS_LENGTH + 1, CHARS_LENGTH).contiguous()
