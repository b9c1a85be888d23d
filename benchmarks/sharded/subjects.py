"""A GPT under one setting on this rank, as `steps.py` and `bytes.py` train it. Needs the default process group."""

import sys
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path

import torch
import torch.distributed as dist
from settings import Shape
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import pliant

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from gpt_fsdp2 import BYTES, Gpt, loss_of

__all__ = ["Alone", "Subject", "gpt", "subject_of"]


def gpt(shape: Shape) -> Gpt:
    """Return the model, the same on all ranks."""
    torch.manual_seed(0)
    return Gpt(width=shape.width, layers=shape.layers, heads=shape.heads, length=shape.length)


def _batches(shape: Shape) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    size = (shape.batch, shape.length + 1)
    return cycle([torch.randint(0, BYTES, size, generator=generator) for _ in range(16)])


class Subject:
    """A training whose steps are made one by one. Collective.

    Args:
        model: As it is called.
        shape: Its size.
        optimizer: Of its parameters.
        what: Plan in the grammar; None leaves the model to torch.

    """

    def __init__(self, model: nn.Module, shape: Shape, optimizer: torch.optim.Optimizer, what: str | None) -> None:
        self.model, self.optimizer, self._batches = model, optimizer, _batches(shape)
        # Comparing replicas every 100 steps would fall on some turns and not on others.
        self.run = None if what is None else pliant.relax(model, optimizer, what, timeout_s=120, agreement_every=0)

    def step(self) -> None:
        """Make a training step."""
        loss_of(self.model, next(self._batches)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank has sent, as the run counts them; None without one."""
        return None if self.run is None else self.run.stats()["sent_bytes"]

    def close(self) -> None:
        """Leave the model to torch."""
        if self.run is not None:
            self.run.close()


class Alone(Subject):
    """The computing of one rank, without any exchange: the whole model's passes, and the step of its shards."""

    def __init__(self, shape: Shape) -> None:
        self._whole = gpt(shape)
        size = dist.get_world_size()
        self._shards = [p.detach().view(-1)[: -(-p.numel() // size)].requires_grad_() for p in self._whole.parameters()]
        super().__init__(self._whole, shape, torch.optim.AdamW(self._shards, lr=1e-4), None)

    def step(self) -> None:
        loss_of(self._whole, next(self._batches)).backward()
        for shard, parameter in zip(self._shards, self._whole.parameters(), strict=True):
            shard.grad = None if parameter.grad is None else parameter.grad.view(-1)[: shard.numel()]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._whole.zero_grad()


def subject_of(shape: Shape, what: str, *, hosts: int = 0) -> Subject:
    """Return a model under a setting; with `hosts` on a mesh of two dimensions, replicas between so many."""
    if what == "computing alone":
        return Alone(shape)
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
    if hosts:
        mesh = init_device_mesh("cpu", (hosts, size // hosts), mesh_dim_names=("replica", "shard"))
    options: Mapping[str, object] = {}
    if what == "torch's bf16":
        half = torch.bfloat16
        options = {"mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, cast_forward_inputs=False)}
    model = gpt(shape)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    plain = what in ("plain FSDP2", "torch's bf16", "plain HSDP")
    return Subject(model, shape, torch.optim.AdamW(model.parameters(), lr=1e-4), None if plain else what)
