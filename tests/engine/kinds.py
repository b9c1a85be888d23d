"""Models with parameters of every kind that DDP trains: complex, of sparse gradients, without elements."""

import torch
from torch import Tensor, nn

IDS, WIDTH = 23, 12


class Complex(nn.Module):
    """Complex weights of one, two and no dimensions, beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(WIDTH, 5, dtype=torch.complex64) / WIDTH)
        self.turn = nn.Parameter(torch.randn((), dtype=torch.complex64))
        self.shift = nn.Parameter(torch.zeros(5, dtype=torch.complex64))
        self.head = nn.Linear(10, IDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = nn.functional.one_hot(ids, IDS)[:, :WIDTH].float()
        y = torch.fft.fft(x) @ self.mix * self.turn + self.shift
        return self.head(torch.view_as_real(y).flatten(1))


class Empty(nn.Module):
    """Parameters without elements in front, in the middle and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(0, 5))
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Parameter(torch.zeros(0))
        self.head = nn.Linear(WIDTH, IDS)
        self.last = nn.Parameter(torch.zeros(3, 0))

    def forward(self, ids: Tensor) -> Tensor:
        x = nn.functional.one_hot(ids, IDS)[:, :WIDTH].float()
        return self.head(self.hidden(x)) + self.first.sum() + self.middle.sum() + self.last.sum()


class Sparse(nn.Module):
    """A table whose gradient holds only the rows that were looked up, and a bag beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(IDS, WIDTH, sparse=True)
        self.bag = nn.EmbeddingBag(IDS, WIDTH, mode="sum", sparse=True)
        self.head = nn.Linear(WIDTH, IDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids) + self.bag(ids.view(-1, 1)))


class Mixed(nn.Module):
    """All of these in one model, in several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse, self.empty, self.complex = Sparse(), Empty(), Complex()

    def forward(self, ids: Tensor) -> Tensor:
        return self.sparse(ids) + self.empty(ids) + self.complex(ids)


class NotSparse(Mixed):
    """The same with dense gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse.table.sparse = self.sparse.bag.sparse = False


KINDS = {"complex": Complex, "empty": Empty, "sparse": Sparse, "mixed": Mixed}


def loss_of(model: nn.Module, rank: int, step: int, num: int = 8) -> Tensor:
    """Return the loss of a small batch; `num` samples, in which ids repeat."""
    ids = torch.randint(0, IDS, (num,), generator=torch.Generator().manual_seed(1000 * rank + step))
    return nn.functional.cross_entropy(model(ids), (ids * 7 + 1) % IDS)


def state_of(model: nn.Module) -> Tensor:
    """Return all parameters as real numbers, flat."""
    flat = [torch.view_as_real(p) if p.is_complex() else p for p in (q.detach() for q in model.parameters())]
    return torch.cat([p.flatten() for p in flat])


__all__ = ["IDS", "KINDS", "WIDTH", "Complex", "Empty", "Mixed", "NotSparse", "Sparse", "loss_of", "state_of"]
