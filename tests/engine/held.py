"""What people hold: a small model in all its wrappers, their optimizers, and their training loops."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for

STEPS = 3
one_at_a_time = threading.Lock()
EVERYTHING = {**ALGORITHMS, **BETWEEN_STEPS}
FEW = (
    *(
        "allreduce",
        "bytegrad",
        "onebit",
        "onebit_adam",
        "powersgd",
        "topk",
        "tasc",
        "every",
        "delayed",
        "sharded_optimizer",
    ),
    *("gossip", "diloco", "post_local_sgd", "bounded_staleness", "between-hosts"),
)
"""One algorithm of each kind."""

OVER_ALGORITHMS = pytest.mark.parametrize(
    "names", [pytest.param(FEW, id="few"), pytest.param(tuple(EVERYTHING), id="all", marks=pytest.mark.extended)]
)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def small() -> Small:
    with one_at_a_time:  # threads share torch's generator
        torch.manual_seed(0)
        return Small()


def batch(rank: int, step: int):
    g = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(4, 6, generator=g), torch.randint(0, 3, (4,), generator=g)


class Like:
    """What Accelerate's and Fabric's optimizers do: they inherit from Optimizer, and never initialize it."""

    class Accelerated(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

        def zero_grad(self, set_to_none=True):
            self.optimizer.zero_grad(set_to_none)

        def step(self, closure=None):
            return self.optimizer.step(closure)

    class FabricOptimizer:
        def __init__(self, optimizer):
            self._optimizer = optimizer
            self.__class__ = type("Fabric" + type(optimizer).__name__, (type(self), type(optimizer)), {})

        @property
        def optimizer(self):
            return self._optimizer

        def step(self, closure=None):
            return self.optimizer.step(closure) if closure else self.optimizer.step()

        def __getattr__(self, name):
            return getattr(self._optimizer, name)

    class FabricModule(nn.Module):
        def __init__(self, forward_module, original):
            super().__init__()
            self._forward_module, self._original_module = forward_module, original

        def forward(self, *inputs):
            return self._forward_module(*inputs)


def in_ddp(module, place):
    return DistributedDataParallel(module, process_group=place.process_group)


def plain(place):
    return small()


def ddp(place):
    return in_ddp(small(), place)


def ddp_compiled(place):
    return torch.compile(in_ddp(small(), place), backend="eager")


def ddp_of_compiled(place):
    return in_ddp(torch.compile(small(), backend="eager"), place)


def compiled_in_place(place):
    module = small()
    module.compile(backend="eager")
    return in_ddp(module, place)


def ddp_compiled_in_place(place):
    model = in_ddp(small(), place)
    model.compile(backend="eager")
    return model


def plain_compiled(place):
    return torch.compile(small(), backend="eager")


def fabric(place):
    module = small()
    return Like.FabricModule(in_ddp(module, place), module)


def fabric_compiled(place):
    module = small()
    return torch.compile(Like.FabricModule(in_ddp(module, place), module), backend="eager")


MODELS = [
    plain,
    ddp,
    ddp_compiled,
    ddp_of_compiled,
    compiled_in_place,
    ddp_compiled_in_place,
    plain_compiled,
    fabric,
    fabric_compiled,
]


def backward(model, rank, step, scale=lambda loss: loss):
    x, y = batch(rank, step)
    scale(nn.functional.cross_entropy(model(x), y)).backward()


def simple(model, optimizers, rank, steps):
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(model, rank, step)
        for optimizer in optimizers:
            optimizer.step()


def accumulating(model, optimizers, rank, steps):
    for step in range(steps):
        optimizers[0].zero_grad()
        with model.no_sync():
            backward(model, rank, 2 * step)
        backward(model, rank, 2 * step + 1)
        optimizers[0].step()


def scaled(model, optimizers, rank, steps):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(steps):
        optimizers[0].zero_grad()
        backward(model, rank, step, scaler.scale)
        scaler.step(optimizers[0])
        scaler.update()


def with_closure(model, optimizers, rank, steps):
    for step in range(steps):

        def closure(step=step):
            optimizers[0].zero_grad()
            backward(model, rank, step)

        optimizers[0].step(closure)


def one(name, model):
    return [optimizer_for(name, model.parameters())]


def two(name, model):
    module = model.module
    return [optimizer_for(name, each.parameters()) for each in (module.first, module.second)]


def accelerated(name, model):
    return [Like.Accelerated(each) for each in one(name, model)]


def of_fabric(name, model):
    return [Like.FabricOptimizer(each) for each in one(name, model)]


WAYS = {
    **{model.__name__: (model, one, simple) for model in MODELS},
    "accelerate": (ddp, accelerated, simple),
    "accelerate compiled": (ddp_compiled, accelerated, simple),
    "fabric's optimizer": (fabric, of_fabric, simple),
    "GradScaler": (ddp, one, scaled),
    "accumulation": (ddp, one, accumulating),
    "closures": (ddp, one, with_closure),
    "two optimizers": (ddp, two, simple),
}


def relaxed(place, model, optimizers, name):
    given = optimizers if len(optimizers) > 1 else optimizers[0]
    hosts = [[0], [1]] if name == "between-hosts" else None
    return pliant.relax(model, given, EVERYTHING[name], group=place.process_group, hosts=hosts, timeout_s=20)
