"""A plain FSDP2 script that knows nothing of Pliant: blocks under fully_shard, 3.2 M parameters, SGD.

pliant run --emulate hosts=4,rate=100mbit -- python examples/plain_fsdp2.py
torchrun --nproc-per-node 2 examples/plain_fsdp2.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    """A layer norm and two linear layers, beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, (batch, width), after the block."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Blocks, and a head of 100 classes."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, 100), of x, (batch, width)."""
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).clone()  # FSDP2 warns of outputs that are views


def samples(batch: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points, (batch, width), around the prototypes of their labels, (batch,), a tenth of which is wrong."""
    prototypes = torch.randn(100, width, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(100, (batch,), generator=generator)
    points = prototypes[labels] + 3 * torch.randn(batch, width, generator=generator)
    wrong = torch.rand(batch, generator=generator) < 0.1
    return points, torch.where(wrong, torch.randint(100, (batch,), generator=generator), labels)


def main() -> None:
    """Train, and say the loss now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=3)
    given = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model(given.width, given.blocks)
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for step in range(given.steps):
        points, labels = samples(given.batch, given.width, 1 + rank + size * step)
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
