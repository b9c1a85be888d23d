"""A plain DDP script, as torch's tutorial has it, that knows nothing of Pliant: 3 M parameters, SGD.

    pliant run --emulate hosts=4,rate=100mbit -- python examples/plain_ddp.py
    torchrun --nproc-per-node 2 examples/plain_ddp.py

A classifier of synthetic images: classes have prototypes, samples are noisy, a tenth of the labels is wrong.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def samples(batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, (batch, 768), and labels, (batch,)."""
    prototypes = torch.randn(100, 768, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(100, (batch,), generator=generator)
    images = prototypes[labels] + 3 * torch.randn(batch, 768, generator=generator)
    wrong = torch.rand(batch, generator=generator) < 0.1
    return images, torch.where(wrong, torch.randint(100, (batch,), generator=generator), labels)


def main() -> None:
    """Train, and say the loss now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    given = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    width = given.width
    model = nn.Sequential(
        nn.Linear(768, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 100),
    )  # fmt: skip
    ddp_model = DistributedDataParallel(model)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.02, momentum=0.9)

    for step in range(given.steps):
        images, labels = samples(given.batch, 1 + rank + size * step)
        optimizer.zero_grad()
        loss = loss_fn(ddp_model(images), labels)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    if rank == 0:
        print(f"the end: loss {loss.item():.3f}, in {os.path.basename(__file__)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
