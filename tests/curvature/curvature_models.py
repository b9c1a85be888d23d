"""Small models with everything that an estimate has to be careful about, and their Hessians written out."""

import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from pliant.curvature import LossObjective


class Tiny(nn.Module):
    """Smooth, with a shared weight, an unused and a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.back = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.back.weight
        self.head = nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.full((4,), 0.7), requires_grad=False)

    def forward(self, x):
        h = torch.tanh(self.first(x)) * self.frozen
        return self.head(torch.tanh(self.again(torch.tanh(self.back(h)))))


class Normed(nn.Module):
    """Convolution, BatchNorm and dropout."""

    def __init__(self, drop=0.5):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.drop(torch.tanh(self.norm(self.conv(x)))).flatten(1))


class Attention(nn.Module):
    """Through a kernel that has no double backward."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.head(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return {"logits": self.head(self.cells(x)[0])}


def made(kind, seed=0, **options):
    torch.manual_seed(seed)
    return kind(**options)


def tiny_task(seed=0, num=12):
    model = made(Tiny)
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(num, 3, generator=g), torch.randint(0, 3, (num,), generator=g)
    return LossObjective(model=model, args=(x,), loss=lambda z: cross_entropy(z, y)), x, y


def explicit_hessian(task, mean_loss=None):
    """(numel, numel) of a task's loss, by functional derivatives that the room does not use."""
    names = list(task.parameters)
    shapes = [p.shape for p in task.parameters.values()]
    start = torch.cat([p.detach().flatten() for p in task.parameters.values()])
    mean_loss = mean_loss or task.loss

    def loss(flat):
        pieces = flat.split([s.numel() for s in shapes])
        values = {n: x.view(s) for n, x, s in zip(names, pieces, shapes, strict=True)}
        return mean_loss(functional_call(task.model, values, task.args, tie_weights=True)).mean()

    return hessian(loss, start)


def flat(diagonal):
    return torch.cat([x.flatten() for x in diagonal.values()])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


__all__ = [
    "Attention",
    "Normed",
    "Recurrent",
    "Tiny",
    "explicit_hessian",
    "flat",
    "made",
    "seeded",
    "tiny_task",
]
