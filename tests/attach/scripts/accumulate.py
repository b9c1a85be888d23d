"""A DDP script with accumulation under no_sync, a scheduler, clipping and a gradient scaler, on two optimizers."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 3


def main(steps):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 6)))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizers = [torch.optim.AdamW(decayed, lr=0.002), torch.optim.SGD(others, lr=0.02, momentum=0.9)]
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(each, steps) for each in optimizers]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(steps):
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        for k in range(MICRO_BATCHES):
            generator = torch.Generator().manual_seed(1000 * step + 10 * k + rank)
            x = torch.randn(8, 12, generator=generator)
            with model.no_sync() if k + 1 < MICRO_BATCHES else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = (model(x).float() - x[:, :6].cos()).square().mean() / MICRO_BATCHES
                scaler.scale(loss).backward()
        for each in optimizers:
            scaler.unscale_(each)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for each in optimizers:
            scaler.step(each)
        scaler.update()
        for each in schedulers:
            each.step()
    total = sum(p.detach().double().sum() for p in model.parameters())
    print(f"rank {rank} sum {total:.9f} lr {schedulers[0].get_last_lr()[0]:.3g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
