"""A DDP script of the shape of torch's tutorial: setup, a toy model, DDP, SGD, a loop, cleanup."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  as the tutorial has it


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 64)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(64, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic(steps):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        inputs = torch.randn(20, 10, generator=generator)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), inputs[:, :5].sin())
        loss.backward()
        optimizer.step()
    total = sum(p.detach().double().sum() for p in model.parameters())
    print(f"rank {rank} pid {os.getpid() > 0} sum {total:.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    demo_basic(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
