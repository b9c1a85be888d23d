"""Eight models that compute for real, of 1.6 to 30 MB of parameters, and their two optimizers."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from pliant.spec import TensorSpec, Workload
from pliant_bench.models import TASKS, Gpt, Lstm, TimingTask, Wide

__all__ = ["MODELS", "OPTIMIZERS", "static_workload"]

GPT_WORDS, LSTM_WORDS, ROWS = 1024, 2000, 40_000


class Residual(nn.Module):
    """Two convolutions around which the input goes on."""

    def __init__(self, width: int, following: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, following, 3, stride, padding=1, bias=False)
        self.two = nn.Conv2d(following, following, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(following) for _ in range(3))
        self.around = nn.Conv2d(width, following, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[1](self.two(torch.relu(self.norms[0](self.one(x)))))
        return torch.relu(h + self.norms[2](self.around(x)))


class Resnet(nn.Module):
    """0.7 M parameters in many small tensors: four stages of one block."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 192)
        self.blocks = nn.Sequential(*(Residual(a, b, 1 + (a > 3)) for a, b in itertools.pairwise(widths)))
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


class Clicks(nn.Module):
    """3.9 M parameters, nearly all of them in two embeddings: users and items, multiplied and through two layers."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(ROWS, width), nn.Embedding(ROWS, width)
        self.hidden, self.head = nn.Linear(3 * width, 128), nn.Linear(128, 2)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.head(torch.relu(self.hidden(torch.cat([users, items, users * items], 1))))


class SmallVgg(nn.Module):
    """7.3 M parameters for 32 x 32 images, 95 % of them in linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b, pool in ((3, 32, True), (32, 64, True), (64, 128, True), (128, 256, False)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), *([nn.MaxPool2d(2)] if pool else [])]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(4096, 1536), nn.ReLU(), nn.Linear(1536, 384), nn.ReLU(), nn.Linear(384, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def _images(num: int, size: int, channels: int = 3) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (torch.randn(num, channels, size, size, generator=g), torch.randint(0, 10, (num,), generator=g))


def _words(words: int, num: int, length: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    shape = (num, length)
    return lambda g: (torch.randint(0, words, shape, generator=g), torch.randint(0, words, shape, generator=g))


def _clicks(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randint(0, ROWS, (64, 2), generator=g), torch.randint(0, 2, (64,), generator=g)


MODELS: dict[str, TimingTask] = {
    "cnn": TimingTask(model=TASKS["cnn"].model, batch=_images(32, 28, 1)),
    "chars": TimingTask(model=TASKS["chars"].model, batch=_words(96, 8, 64)),
    "resnet": TimingTask(model=Resnet, batch=_images(8, 32)),
    "lstm": TimingTask(model=lambda: Lstm(LSTM_WORDS, 128, 256), batch=_words(LSTM_WORDS, 4, 16)),
    "gpt": TimingTask(model=lambda: Gpt(GPT_WORDS, width=192, heads=4, depth=4), batch=_words(GPT_WORDS, 2, 64)),
    "wide": TimingTask(model=lambda: Wide(1024), batch=lambda g: (torch.randn(4, 1024, generator=g), torch.arange(4))),
    "clicks": TimingTask(model=Clicks, batch=_clicks),
    "vgg": TimingTask(model=SmallVgg, batch=_images(2, 32)),
}
"""By name, the smallest gradient first; batches so small that eight ranks of two cores make several steps a second."""

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], Optimizer]] = {
    "SGD": lambda parameters: SGD(parameters, lr=1e-3, momentum=0.9),
    "AdamW": lambda parameters: AdamW(parameters, lr=1e-4),
}


def static_workload(name: str) -> Workload:
    """Return a model's tensors, the last first, without times: enough to say which plans are possible."""
    module = MODELS[name].model()
    layer_of = {id(p): type(m).__name__ for m in module.modules() for p in m.parameters(recurse=False)}
    tensors = [
        TensorSpec(name=own, shape=tuple(p.shape), dtype="float32", layer=layer_of[id(p)], ready_s=0.0)
        for own, p in reversed(list(module.named_parameters()))
    ]
    return Workload(name=name, tensors=tuple(tensors), forward_s=0.0, backward_s=0.0)
