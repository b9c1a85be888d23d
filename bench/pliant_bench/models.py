"""The models that are measured: two small real ones, one that hardly computes, and three of 12 to 17 M parameters."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = ["CHARS_LENGTH", "TASKS", "Cnn", "Gpt", "Lstm", "TimingTask", "Vgg", "Wide", "chars"]

CHARS_LENGTH = 64
"""Characters that the model of characters sees."""


def _conv(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()]


class Cnn(nn.Module):
    """0.41 M parameters for 28 x 28 images: two convolutions and a linear layer that holds most of them."""

    def __init__(self, channels: int = 1, classes: int = 10, size: int = 28, hidden: int = 256) -> None:
        super().__init__()
        self.features = nn.Sequential(*_conv(channels, 16), nn.MaxPool2d(2), *_conv(16, 32), nn.MaxPool2d(2))
        self.hidden = nn.Linear(32 * (size // 4) ** 2, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of images, (batch, channels, size, size)."""
        return self.head(torch.relu(self.hidden(self.features(x).flatten(1))))


class Wide(nn.Module):
    """12.6 M parameters in three square linear layers: hardly any computing, so that the network alone decides."""

    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, width), of features, (batch, width)."""
        return self.layers(x)


class Vgg(nn.Module):
    """13 M parameters for 32 x 32 images, most of them in linear layers, as VGG has them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for following, pool in (
            (64, False),
            (64, True),
            (128, False),
            (128, True),
            (256, False),
            (256, True),
            (512, True),
        ):
            layers += _conv(width, following) + ([nn.MaxPool2d(2)] if pool else [])
            width = following
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, 10), of images, (batch, 3, 32, 32)."""
        return self.classifier(self.features(x).flatten(1))


class Gpt(nn.Module):
    """12 M parameters: six pre-norm decoder blocks of width 384 with tied embeddings."""

    def __init__(
        self, vocabulary: int = 4096, width: int = 384, length: int = 64, heads: int = 6, depth: int = 6
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        for embedding in (self.tokens, self.places):  # tied to the output, they must begin small to learn at all
            nn.init.normal_(embedding.weight, std=0.02)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, length, vocabulary), of tokens, (batch, length)."""
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.tokens(x) + self.places(torch.arange(length))
        return self.norm(self.blocks(h, mask=mask, is_causal=True)) @ self.tokens.weight.t()


def chars(vocabulary: int = 96) -> Gpt:
    """Return the model of characters: two blocks of width 128 over 64 characters, 0.42 M parameters."""
    return Gpt(vocabulary, width=128, length=CHARS_LENGTH, heads=4, depth=2)


class Lstm(nn.Module):
    """17 M parameters: embedding, two LSTM layers, a linear layer over 10,000 words."""

    def __init__(self, vocabulary: int = 10_000, embedding: int = 400, width: int = 650) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, length, vocabulary), of tokens, (batch, length)."""
        return self.head(self.recurrent(self.tokens(x))[0])


@dataclass(frozen=True, kw_only=True)
class TimingTask:
    """A model with made-up batches of a fixed size, for step times."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy of one batch."""
        inputs, targets = batch
        return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def _images(channels: int, size: int, num: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (torch.randn(num, channels, size, size, generator=g), torch.randint(0, 10, (num,), generator=g))


def _words(vocabulary: int, num: int, length: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    shape = (num, length)
    return lambda g: (
        torch.randint(0, vocabulary, shape, generator=g),
        torch.randint(0, vocabulary, shape, generator=g),
    )


TASKS = {
    "cnn": TimingTask(model=Cnn, batch=_images(1, 28, 64)),
    "chars": TimingTask(model=chars, batch=_words(96, 16, CHARS_LENGTH)),
    "wide": TimingTask(model=Wide, batch=lambda g: (torch.randn(4, 2048, generator=g), torch.arange(4))),
    "vgg": TimingTask(model=Vgg, batch=_images(3, 32, 10)),
    "gpt": TimingTask(model=Gpt, batch=_words(4096, 3, 64)),
    "lstm": TimingTask(model=Lstm, batch=_words(10_000, 8, 20)),
}
"""Sized so that a step computes for 0.4 to 0.9 s on four ranks of two cores (cnn, chars: 0.1 s; wide: hardly)."""
