"""Training that all recipes here start: any DDP script with the line of `pliant.relax` in it takes its place."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant

parser = argparse.ArgumentParser()
parser.add_argument("--plan", default="onebit", help="What relax() takes: a name, or the path of a plan.")
parser.add_argument("--steps", type=int, default=100)
options = parser.parse_args()

dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(dist.get_rank())
with pliant.relax(model, optimizer, options.plan) as run:
    for _ in range(options.steps):
        inputs = torch.randn(32, 512, generator=generator).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"{options.steps} steps on {dist.get_world_size()} ranks, {run.stats()['sent_bytes']:.0f} bytes sent")
dist.destroy_process_group()
