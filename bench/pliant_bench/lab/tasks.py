"""Tasks of the laboratory of quality: small models with data, a loss and how they are trained."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from pliant_bench.clicks.generator import Clicks
from pliant_bench.data.fetch import find_images, find_text
from pliant_bench.data.images import load_images
from pliant_bench.data.text import Text, load_text
from pliant_bench.harness.tasks import sample_batch
from pliant_bench.lab.models import CharLstm, ClickMlp
from pliant_bench.models import CHARS_LENGTH, Gpt, chars

__all__ = ["TASK_NAMES", "LabTask", "load_task"]

_TRAIN_WINDOWS = 40_000
_HELD_OUT_WINDOWS, _HELD_OUT_IMAGES, _HELD_OUT_CLICKS = 100, 1000, 4000
_TRAIN_CLICKS = 120_000
_CLICK_TABLES = (30,) * 8


@dataclass(frozen=True, kw_only=True)
class LabTask:
    """A model with its data and its loss; less of the held-out mean loss is better.

    The held-out loss, in nats a target, is the metric of every task: a perplexity is its exponential, and it is
    smoother than an accuracy.
    """

    name: str
    model: Callable[[], nn.Module]
    """Makes a new model, the same for the same seed of torch."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Mean loss of a model's output and the targets."""
    train: tuple[Tensor, Tensor]
    """Inputs and targets, (items, ...) each."""
    held_out: tuple[Tensor, Tensor]
    """Inputs and targets, (items, ...) each."""
    batch: int
    """Items of a worker and a step."""
    steps: int
    """Steps until the learning rate has come down to a tenth."""
    first_lr: dict[str, float]
    """Optimizer -> learning rate at which its tuning begins."""

    def batch_of(self, step: int, rank: int, ranks: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return a worker's inputs and targets of a step; over an epoch each item goes to one worker and step."""
        inputs, targets = self.train
        items = sample_batch(inputs.shape[0], step, rank, ranks, self.batch, seed)
        return inputs[items], targets[items]

    def judge(self, model: nn.Module) -> float:
        """Return the mean loss on held-out data, in nats a target; the model is back in training mode afterwards."""
        model.eval()
        device = next(model.parameters()).device
        inputs, targets = (part.to(device) for part in self.held_out)
        with torch.no_grad():
            value = float(self.loss(model(inputs), targets))
        model.train()
        return value


def load_task(name: str, data: str = "") -> LabTask:
    """Return a task of a name, with its data.

    Args:
        name: One of `TASK_NAMES`.
        data: Folder with images or text of the user's own; by default those of `pliant bench`. Clicks need none.

    Raises:
        ValueError: There is no such task.
        DataMissingError: The data could not be found or fetched.

    """
    if name not in _LOADERS:
        raise ValueError(f"there is no task {name!r} in the laboratory; there are {', '.join(TASK_NAMES)}.")
    return _LOADERS[name](data)


def _images(data: str) -> LabTask:
    images = load_images(find_images(data))
    num = min(_HELD_OUT_IMAGES, images.num_held_out)
    return LabTask(
        name="images",
        model=images.model,
        loss=cross_entropy,
        train=(images.train_x, images.train_y),
        held_out=(images.test_x[:num], images.test_y[:num]),
        batch=16,
        steps=250,
        first_lr={"SGD": 0.015, "AdamW": 1e-3},
    )


def _characters(data: str, name: str, model: Callable[[int], nn.Module]) -> LabTask:
    text = load_text(find_text(data))
    return LabTask(
        name=name,
        model=lambda: model(text.vocabulary),
        loss=_of_characters,
        train=_windows(text.train, _TRAIN_WINDOWS),
        held_out=_windows(_spread(text), _HELD_OUT_WINDOWS),
        batch=4,
        steps=250,
        first_lr={"SGD": 0.1, "AdamW": 4e-3},
    )


def _gpt_small(data: str) -> LabTask:
    small = _characters(data, "gpt_small", lambda n: Gpt(n, width=64, length=CHARS_LENGTH, heads=2, depth=1))
    return replace(small, batch=8)


def _gpt(data: str) -> LabTask:
    return _characters(data, "gpt", chars)


def _lstm(data: str) -> LabTask:
    lstm = _characters(data, "lstm", CharLstm)
    return replace(lstm, batch=8, first_lr={"SGD": 0.5, "AdamW": 8e-3})


def _clicks(data: str) -> LabTask:
    del data
    drawn = Clicks(num_rows=_CLICK_TABLES, exponent=0.5, strength=2.5).batch(0, 0, _TRAIN_CLICKS + _HELD_OUT_CLICKS)
    rows = [nn.functional.one_hot(ids, num).float() for ids, num in zip(drawn.ids, _CLICK_TABLES, strict=True)]
    inputs = torch.cat([drawn.dense, *rows], 1)
    return LabTask(
        name="clicks",
        model=lambda: ClickMlp(inputs.shape[1]),
        loss=lambda output, target: binary_cross_entropy_with_logits(output.flatten(), target),
        train=(inputs[:_TRAIN_CLICKS], drawn.label[:_TRAIN_CLICKS]),
        held_out=(inputs[_TRAIN_CLICKS:], drawn.label[_TRAIN_CLICKS:]),
        batch=64,
        steps=300,
        first_lr={"SGD": 0.1, "AdamW": 2e-3},
    )


def _of_characters(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output.flatten(0, -2), target.flatten())


def _spread(text: Text) -> Tensor:
    """Return held-out windows from all over the text."""
    return text.held_out[:: max(text.num_held_out // _HELD_OUT_WINDOWS, 1)]


def _windows(windows: Tensor, num: int) -> tuple[Tensor, Tensor]:
    chosen = windows[:num].long()
    return chosen[:, :-1], chosen[:, 1:]


_LOADERS: dict[str, Callable[[str], LabTask]] = {
    "gpt_small": _gpt_small,
    "clicks": _clicks,
    "lstm": _lstm,
    "images": _images,
    "gpt": _gpt,
}
TASK_NAMES = tuple(_LOADERS)
"""Names of the tasks, those with the shortest trials first."""
