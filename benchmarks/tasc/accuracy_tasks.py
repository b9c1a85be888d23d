"""What is learned in the accuracy job: Fashion-MNIST, by two models, and English characters; enough for one core."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from pliant_bench.data.fetch import find_images, find_text
from pliant_bench.data.images import load_images
from pliant_bench.data.text import load_text
from pliant_bench.harness.tasks import TrainingTask
from pliant_bench.models import CHARS_LENGTH

OPTIMIZERS = ("sgd", "adam")
_JUDGED = {"images": 10_000, "language": 600, "large": 10_000}
_AT_ONCE = 200


class Decoder(nn.Module):
    """0.41 M parameters: two pre-norm blocks without biases, since what is one-dimensional is sent whole.

    Its norms are 0.15 % of it, so that even a 300th of the bytes is mostly what an arm has chosen.
    """

    def __init__(self, vocabulary: int, width: int = 128, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(CHARS_LENGTH, width)
        for embedding in (self.tokens, self.places):  # tied to the output, they must begin small to learn at all
            nn.init.normal_(embedding.weight, std=0.02)
        shape = {"dropout": 0.0, "batch_first": True, "norm_first": True, "bias": False}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, **shape) for _ in range(depth))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, length, vocabulary), of characters, (batch, length)."""
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            h = block(h, mask, is_causal=True)
        return self.norm(h) @ self.tokens.weight.t()


def _wide_layers() -> nn.Module:
    """Return a perceptron of 5.55 M parameters for images."""
    widths, layers = (784, 2048, 1536, 512), list[nn.Module]([nn.Flatten()])
    for width_in, width in pairwise(widths):
        layers += [nn.Linear(width_in, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, a model, and how it is trained."""

    name: str
    learning: TrainingTask
    model: Callable[[], nn.Module]
    batch: int
    """Items per worker and step."""
    lr: dict[str, float]
    """Of each optimizer: what suited dense training, the same for all arms."""

    def optimizer(self, kind: str, model: nn.Module, *, momentum: float = 0.9) -> Optimizer:
        """Return SGD, by default with momentum 0.9, or AdamW."""
        if kind == "sgd":
            return SGD(model.parameters(), lr=self.lr["sgd"], momentum=momentum)
        return AdamW(model.parameters(), lr=self.lr["adam"])

    def judge(self, model: nn.Module) -> float:
        """Return the metric on held-out data."""
        num = min(_JUDGED[self.name], self.learning.num_held_out)
        sums = torch.zeros(2, dtype=torch.float64)
        model.eval()
        with torch.no_grad():
            for first in range(0, num, _AT_ONCE):
                sums += torch.tensor(self.learning.tally(model, first, min(first + _AT_ONCE, num)))
        mean = float(sums[0] / sums[1])
        return mean if self.learning.metric.higher else float(torch.tensor(mean).exp())


def task_named(name: str, data: str = "") -> Task:
    """Load a task; its data is that of `pliant bench`, or in a folder of the user's own."""
    if name == "images":
        images = load_images(find_images(data))
        return Task(name=name, learning=images, model=images.model, batch=16, lr={"sgd": 0.015, "adam": 1e-3})
    if name == "large":
        images = load_images(find_images(data))
        return Task(name=name, learning=images, model=_wide_layers, batch=16, lr={"sgd": 0.06, "adam": 5e-4})
    if name == "language":
        text = load_text(find_text(data))
        lr = {"sgd": 0.1, "adam": 2e-3}
        return Task(name=name, learning=text, model=lambda: Decoder(text.vocabulary), batch=4, lr=lr)
    raise ValueError(f"there is no task {name!r}; there are images, language and large.")
