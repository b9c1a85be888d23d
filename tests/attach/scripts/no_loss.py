"""A DDP script whose backward pass starts from gradients of its own: no loss is computed."""

import sys

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel


def main(steps):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5)))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        inputs = torch.randn(20, 10, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        optimizer.zero_grad()
        outputs = model(inputs)
        outputs.backward((outputs.detach() - inputs[:, :5].sin()) / 50)
        optimizer.step()
    print(f"sum {sum(p.detach().double().sum() for p in model.parameters()):.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
