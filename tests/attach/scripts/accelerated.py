"""An Accelerate script of the shape of its basic example: prepare, accumulate, backward, clip, step, schedule."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(steps):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    x = torch.randn(16 * steps, 8)
    loader = DataLoader(TensorDataset(x, x[:, :2].sin()), batch_size=4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    total = sum(p.detach().double().sum() for p in model.parameters())
    print(f"rank {accelerator.process_index} sum {total:.9f}")
    accelerator.end_training()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
