"""Language modelling at many sizes and batches, on text that every machine has.

``python -m pliant_bench.lab.language FOLDER`` writes that text into a folder, for a machine that has another Python.
"""

import functools
import math
import platform
import sys
from pathlib import Path

from torch import Tensor
from torch.nn.functional import cross_entropy

from pliant_bench.data.fetch import given_folder
from pliant_bench.data.text import Text, load_text, python_text, save_python_text
from pliant_bench.lab.decoder import SIZES, Decoder
from pliant_bench.lab.tasks import LabTask

__all__ = ["first_rate", "language_task", "save_text", "text_name"]

_HELD_OUT_WINDOWS = 500
_BASE_WINDOWS = 32
_NAME = "NAME"
"""File that says which text a folder has, if it is that of another machine."""


def language_task(size: str, windows: int, ranks: int, steps: int, folder: str = "") -> LabTask:
    """Return the task of predicting the next character.

    Args:
        size: One of `SIZES`.
        windows: Windows of 64 characters in a step, of all ranks together.
        ranks: Workers among whom they are divided.
        steps: Length of the schedule.
        folder: Folder of text files of the user's own; the source of Python's library if empty.

    Raises:
        ValueError: There is no such size, or the windows cannot be divided.
        DataMissingError: There is no text, or too little.

    """
    if size not in SIZES:
        raise ValueError(f"there is no decoder of {size}; there are {', '.join(SIZES)}.")
    if windows % ranks:
        raise ValueError(f"{windows} windows cannot be divided among {ranks} ranks; use a multiple of {ranks}.")
    text = _text(folder)
    held_out = text.held_out[:: max(text.num_held_out // _HELD_OUT_WINDOWS, 1)].long()
    return LabTask(
        name=f"decoder-{size}",
        model=lambda: Decoder(text.vocabulary, SIZES[size]),
        loss=lambda output, target: cross_entropy(output.flatten(0, -2), target.flatten()),
        train=_train(folder),
        held_out=(held_out[:, :-1], held_out[:, 1:]),
        batch=windows // ranks,
        steps=steps,
        first_lr={},
    )


def text_name(folder: str) -> str:
    """Return what says which text a folder stands for; perplexities of two texts cannot be compared."""
    if not folder:
        return f"library of Python {platform.python_version()}"
    name = Path(folder) / _NAME
    return name.read_text(encoding="utf-8").strip() if name.exists() else str(Path(folder).resolve())


def save_text(folder: Path) -> None:
    """Write this machine's text and its name into a folder, so that trainings on it are those of this machine."""
    save_python_text(folder)
    (folder / _NAME).write_text(text_name("") + "\n", encoding="utf-8")


def first_rate(size: str, windows: int) -> float:
    """Return the learning rate at which tuning begins: a power of two, lower for wide models, higher for large batches.

    >>> first_rate("0.4M", 32), first_rate("0.4M", 512), first_rate("3M", 32)
    (0.00390625, 0.015625, 0.001953125)
    """
    return 0.5 / SIZES[size].width * 2.0 ** round(math.log2(windows / _BASE_WINDOWS) / 2)


@functools.cache
def _text(folder: str) -> Text:
    return load_text(Path(given_folder(folder, "text files"))) if folder else python_text()


@functools.cache
def _train(folder: str) -> tuple[Tensor, Tensor]:
    windows = _text(folder).train.long()
    return windows[:, :-1], windows[:, 1:]


if __name__ == "__main__":
    save_text(Path(sys.argv[1]))
