"""A network whose steps take known times of a clock that is made up."""

import torch
from torch import nn


class Sleep(torch.autograd.Function):
    """Takes a known time each way."""

    @staticmethod
    def forward(ctx, x, clock, forward_s, backward_s):
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.sleep(forward_s)
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        ctx.clock.sleep(ctx.backward_s)
        return g, None, None, None


class Sleepy(nn.Module):
    """Four layers that take 10 ms forward and 20, 30, 40 and 50 ms backward."""

    def __init__(self, clock) -> None:
        super().__init__()
        self.clock = clock
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            x = layer(Sleep.apply(x, self.clock, 0.01, 0.02 + 0.01 * k))
        return x


class SleepySGD(torch.optim.SGD):
    """Takes 3 ms."""

    clock = None

    def step(self, closure=None):
        self.clock.sleep(0.003)
        return super().step(closure)


def step(model, optimizer, x, y=None):
    optimizer.zero_grad()
    out = model(x)
    (out.square().mean() if y is None else nn.functional.cross_entropy(out, y)).backward()
    optimizer.step()


__all__ = ["Sleepy", "SleepySGD", "step"]
