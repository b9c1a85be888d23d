"""Forty small models, with what is special in the way each is built, called and trained; data are made, and endless.

A teacher makes the labels, and noise goes on top, so that the loss comes down to a floor above 0 and stays there.
"""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

__all__ = ["CASES", "Case", "batch"]

IN, WIDE, CLASSES, TOKENS, LENGTH = 96, 128, 5, 64, 8
Pair = namedtuple("Pair", "logits rest")


@dataclass
class Answer:
    """An output with a name for each part."""

    logits: Tensor


@dataclass
class Hidden:
    """An output without logits."""

    values: Tensor


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its data and its loss."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Tensor], Tensor]
    """From the output and the labels."""
    data: str = "numbers"
    labels: str = "classes"
    autocast: bool = False
    accumulate: int = 1
    clip: float = 0.0
    takes_labels: bool = False
    """Whether forward is called with the labels too, and returns the loss."""
    ddp: dict[str, Any] = field(default_factory=dict)


class Body(nn.Module):
    """Two hidden layers and a head, with an output in any form."""

    def __init__(self, width: int = CLASSES, form: Callable[[Tensor], Any] = lambda z: z, act=f.relu, norm=None):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(IN, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, width)
        self.norm = norm(WIDE) if norm is not None else nn.Identity()
        self.form, self.act = form, act

    def forward(self, x, y=None):
        z = self.head(self.act(self.two(self.norm(self.act(self.one(x))))))
        return self.form(z) if y is None else self.form(z, y)


class Pictures(nn.Module):
    """A convolutional network."""

    def __init__(self, norm=nn.BatchNorm2d, whole=False):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.norm, self.head = norm(32), nn.Conv2d(64, CLASSES, 1)
        self.whole = whole

    def forward(self, x):
        x = x.view(-1, 1, 8, 12)
        z = self.head(f.relu(self.two(f.relu(self.norm(self.one(x))))))
        return z if self.whole else z.mean((2, 3))


class Recurrent(nn.Module):
    """Tokens through a recurrent layer to classes, a number, or the next token."""

    def __init__(self, cell, width=CLASSES, every=False, tied=False):
        super().__init__()
        self.embed, self.cell = nn.Embedding(TOKENS, WIDE), cell(WIDE, WIDE, batch_first=True)
        self.head = nn.Linear(WIDE, width)
        self.every = every
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        h, _ = self.cell(self.embed(tokens))
        return self.head(h if self.every else h[:, -1])


class Attention(nn.Module):
    """A small transformer."""

    def __init__(self, width=CLASSES, every=False):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDE)
        self.layer = nn.TransformerEncoderLayer(WIDE, 4, WIDE, dropout=0.0, batch_first=True)
        self.head, self.every = nn.Linear(WIDE, width), every

    def forward(self, tokens):
        h = self.layer(self.embed(tokens))
        return self.head(h if self.every else h.mean(1))


class Clicks(nn.Module):
    """Embeddings beside each other, and one number."""

    def __init__(self, sparse=False):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(TOKENS, 32, mode="sum", sparse=sparse) for _ in range(LENGTH))
        self.one, self.head = nn.Linear(32 * LENGTH, WIDE), nn.Linear(WIDE, 1)

    def forward(self, tokens):
        found = [table(tokens[:, k : k + 1]) for k, table in enumerate(self.tables)]
        return self.head(f.relu(self.one(torch.cat(found, -1))))


class Tied(nn.Module):
    """An autoencoder whose halves share a weight."""

    def __init__(self):
        super().__init__()
        self.one, self.back = nn.Linear(IN, WIDE), nn.Linear(WIDE, IN)
        self.back.weight = nn.Parameter(self.one.weight.detach().t().contiguous())
        self.shared = nn.Parameter(torch.randn(IN, WIDE) / IN**0.5)

    def forward(self, x):
        return f.relu(x @ self.shared) @ self.shared.t() + self.back(torch.tanh(self.one(x)))


class Unused(Body):
    """With a branch that only some steps use."""

    def __init__(self):
        super().__init__()
        self.branch, self.calls = nn.Linear(WIDE, WIDE), 0

    def forward(self, x, y=None):
        self.calls += 1
        h = f.relu(self.one(x))
        return self.head(f.relu(self.branch(h) if self.calls % 3 == 0 else self.two(h)))


def frozen(make: Callable[[], nn.Module], *names: str) -> Callable[[], nn.Module]:
    """Let some of a model's layers be trained no more."""

    def made() -> nn.Module:
        model = make()
        for name in names:
            model.get_submodule(name).requires_grad_(False)
        return model

    return made


def ce(z, y):
    return f.cross_entropy(z.float(), y)


def bce(z, y):
    return f.binary_cross_entropy_with_logits(z.float(), y)


def bits(z, y):
    return bce(z, y[:, None])


def mse(z, y):
    return f.mse_loss(z.float(), y)


def number(z, y):
    return mse(z, y[:, None])


def of_tokens(z, y):
    return ce(z.flatten(0, 1), y.flatten())


CASES = tuple(
    Case(**row)
    for row in (
        {"name": "softmax", "model": Body, "loss": ce},
        {"name": "tanh", "model": lambda: Body(act=torch.tanh), "loss": ce},
        {"name": "batch norm", "model": lambda: Body(norm=nn.BatchNorm1d), "loss": ce},
        {"name": "layer norm", "model": lambda: Body(norm=nn.LayerNorm), "loss": ce},
        {"name": "dropout", "model": lambda: Body(norm=lambda _: nn.Dropout(0.1)), "loss": ce},
        {"name": "convolutions", "model": Pictures, "loss": ce},
        {"name": "group norm", "model": lambda: Pictures(lambda n: nn.GroupNorm(4, n)), "loss": ce},
        {"name": "each pixel", "model": lambda: Pictures(whole=True), "loss": lambda z, y: ce(z.mean((2, 3)), y)},
        {"name": "one logit", "model": lambda: Body(1), "loss": bits, "labels": "bit"},
        {"name": "one logit, flat", "model": lambda: Body(1, lambda z: z.squeeze(-1)), "loss": bce, "labels": "bit"},
        {"name": "many bits", "model": Body, "loss": bce, "labels": "bits"},
        {"name": "one number", "model": lambda: Body(1), "loss": number, "labels": "number"},
        {"name": "numbers", "model": Body, "loss": mse, "labels": "numbers"},
        {"name": "huber", "model": Body, "loss": lambda z, y: f.smooth_l1_loss(z, y), "labels": "numbers"},
        {"name": "absolute", "model": Body, "loss": lambda z, y: f.l1_loss(z, y), "labels": "numbers"},
        {"name": "scalar, softmax", "model": lambda: Body(form=ce), "loss": lambda z, _: z, "takes_labels": True},
        {
            "name": "scalar, numbers",
            "model": lambda: Body(form=mse),
            "loss": lambda z, _: z,
            "takes_labels": True,
            "labels": "numbers",
        },
        {
            "name": "loss and logits",
            "model": lambda: Body(form=lambda z, y: {"loss": ce(z, y), "logits": z}),
            "loss": lambda z, _: z["loss"],
            "takes_labels": True,
        },
        {"name": "dict", "model": lambda: Body(form=lambda z: {"logits": z}), "loss": lambda z, y: ce(z["logits"], y)},
        {
            "name": "loss in a dict",
            "model": lambda: Body(form=lambda z, y: {"loss": ce(z, y)}),
            "loss": lambda z, _: z["loss"],
            "takes_labels": True,
        },
        {"name": "dataclass", "model": lambda: Body(form=Answer), "loss": lambda z, y: ce(z.logits, y)},
        {
            "name": "dataclass, numbers",
            "model": lambda: Body(form=Hidden),
            "labels": "numbers",
            "loss": lambda z, y: mse(z.values, y),
        },
        {"name": "tuple", "model": lambda: Body(form=lambda z: (z, z.detach())), "loss": lambda z, y: ce(z[0], y)},
        {"name": "tuple, second", "model": lambda: Body(form=lambda z: (z, 2 * z)), "loss": lambda z, y: ce(z[1], y)},
        {"name": "named tuple", "model": lambda: Body(form=lambda z: Pair(z, None)), "loss": lambda z, y: ce(z[0], y)},
        {"name": "gru", "model": lambda: Recurrent(nn.GRU), "loss": ce, "data": "tokens"},
        {
            "name": "lstm, number",
            "model": lambda: Recurrent(nn.LSTM, 1),
            "loss": number,
            "data": "tokens",
            "labels": "number",
        },
        {
            "name": "tied language",
            "model": lambda: Recurrent(nn.GRU, TOKENS, every=True, tied=True),
            "loss": of_tokens,
            "data": "tokens",
            "labels": "next",
        },
        {"name": "tied autoencoder", "model": Tied, "loss": mse, "labels": "itself"},
        {"name": "attention", "model": Attention, "loss": ce, "data": "tokens"},
        {
            "name": "attention, padded",
            "model": lambda: Attention(TOKENS, every=True),
            "loss": of_tokens,
            "data": "tokens",
            "labels": "padded",
        },
        {"name": "clicks", "model": Clicks, "loss": bits, "data": "tokens", "labels": "bit"},
        {
            "name": "sparse embedding",
            "model": lambda: Clicks(sparse=True),
            "loss": bits,
            "data": "tokens",
            "labels": "bit",
        },
        {"name": "frozen", "model": frozen(Body, "one"), "loss": ce},
        {"name": "unused", "model": Unused, "loss": ce, "ddp": {"find_unused_parameters": True}},
        {"name": "autocast", "model": Body, "loss": ce, "autocast": True},
        {"name": "autocast, number", "model": lambda: Body(1), "loss": number, "labels": "number", "autocast": True},
        {"name": "accumulation", "model": Body, "loss": ce, "accumulate": 2},
        {
            "name": "smoothed, clipped",
            "model": Body,
            "clip": 0.5,
            "loss": lambda z, y: f.cross_entropy(z, y, None, label_smoothing=0.1),
        },
        {
            "name": "weights of classes",
            "model": Body,
            "loss": lambda z, y: f.cross_entropy(z, y, torch.arange(1.0, 6.0)),
        },
    )
)


def batch(case: Case, seed: int, rank: int, step: int, num: int = 32) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of one rank in one step; seeds have teachers of their own."""
    teacher = torch.Generator().manual_seed(7919 + seed)
    weight = torch.randn(IN, CLASSES, generator=teacher) * 2 / IN**0.5
    g = torch.Generator().manual_seed((64 * seed + rank << 20) + step)  # it takes 32 bits
    if case.data == "tokens":
        x = torch.randint(0, TOKENS, (num, LENGTH), generator=g)
        worth = torch.randn(TOKENS, CLASSES, generator=teacher)
        z = worth[x].sum(1) / LENGTH**0.5
    else:
        x = torch.randn(num, IN, generator=g)
        z = x @ weight
    noise = torch.rand(z.shape, generator=g)
    if case.labels == "classes":
        y = (z - (-noise.clamp(1e-6).log()).log()).argmax(-1)  # a draw from the softmax
    elif case.labels in ("bit", "bits"):
        y = (noise < z.sigmoid()).float()
        y = y[:, 0] if case.labels == "bit" else y
    elif case.labels in ("number", "numbers"):
        y = torch.tanh(z) + noise - 0.5
        y = y[:, 0] if case.labels == "number" else y
    elif case.labels == "itself":
        y = x
    else:
        follows = torch.randperm(TOKENS, generator=teacher)
        strays = torch.randint(0, TOKENS, x.shape, generator=g)
        y = torch.where(torch.rand(x.shape, generator=g) < 0.7, follows[x], strays)
        y = y.masked_fill(torch.arange(LENGTH) >= LENGTH - 2, -100) if case.labels == "padded" else y
    return x, y
