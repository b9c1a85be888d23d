"""A small GPT, and what plain training makes of it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

WIDTH, VOCABULARY, LENGTH = 32, 48, 12


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.before, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        # Without a bias: a key's has no gradient but rounding, which Adam would make steps of.
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.between, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module] = lambda b: b, width: int = WIDTH) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(wrap(Block(width)) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).clone()  # FSDP2 warns of views


def build(
    shard: Callable[..., Any] = fully_shard,
    wrap: Callable[[nn.Module], nn.Module] = lambda b: b,
    width: int = WIDTH,
    **options: Any,
) -> Gpt:
    torch.manual_seed(0)
    model = Gpt(wrap, width)
    for block in model.blocks:
        shard(block, **options)
    shard(model, **options)
    return model


def whole(model: nn.Module) -> Tensor:
    """Return all weights of a sharded model, (numel,), float64. Collective."""
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([part.detach().flatten().double() for part in parts])


def loss(model: nn.Module, turn: int, stream: int | None = None) -> Tensor:
    stream = dist.get_rank() if stream is None else stream
    generator = torch.Generator().manual_seed(turn * 100 + stream)
    ids = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def take_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 10,
    *,
    first: int = 0,
    accumulate: int = 1,
    unsynchronized: bool = False,
    clip: float = 0.0,
) -> None:
    for step in range(first, first + steps):
        for part in range(accumulate):
            if unsynchronized:
                model.set_requires_gradient_sync(part == accumulate - 1)
            (loss(model, step * 7 + part) / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()


def train(model: nn.Module, *given: Any, **how: Any) -> Tensor:
    """Take steps, and return all weights, which takes as long as a step."""
    take_steps(model, *given, **how)
    return whole(model)


def apart(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()
