"""The arms of a comparison: torch's DDP with its hooks, and every algorithm of Pliant, behind one face."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer

import pliant
from pliant.algorithms import ALGORITHMS, Algorithm
from pliant.cli.bench.setup import settings_of
from pliant.engine.choose import recommended

__all__ = ["POWERSGD_RANK", "Arm", "prepare"]

POWERSGD_RANK = 1
"""Of torch's hook."""
_ONE_BUCKET_MB = 10_000
ADAM_LR = 2e-3


@dataclass(kw_only=True)
class Arm:
    """A model that trains one way."""

    name: str
    model: nn.Module
    optimizer: Optimizer
    run: "pliant.Run | None"

    def sent_bytes(self) -> float | None:
        """Return bytes that this rank's run has sent, if Pliant counts them."""
        return None if self.run is None else self.run.stats()["sent_bytes"]

    def exposed_s(self) -> float | None:
        """Return the time that this rank's run has waited for communication after backward."""
        return None if self.run is None else self.run.stats()["exposed_s"]

    def close(self) -> None:
        """Remove hooks."""
        if self.run is not None:
            self.run.close()


def _bf16_hook(state: object, bucket: GradBucket) -> Future[Tensor]:
    """Divide, cast, sum in bfloat16, cast back: torch's own hook refuses Gloo by its name."""
    del state
    buffer = bucket.buffer()
    wire = buffer.div_(dist.get_world_size()).to(torch.bfloat16)
    work = dist.all_reduce(wire, async_op=True)
    if work is None:
        raise RuntimeError("this rank is not in the default group, so it cannot all-reduce.")

    def cast_back(_: Future[list[Tensor]]) -> Tensor:
        return buffer.copy_(wire)

    return work.get_future().then(cast_back)


def prepare(name: str, module: nn.Module, lr: float, total_steps: int, bucket_mb: float) -> Arm:
    """Wrap a module for one arm. Collective: every rank makes the same arms in the same order."""
    warmup_steps = max(total_steps // 5, 1)
    optimizer: Optimizer
    if name == "onebit_adam":
        optimizer = pliant.OneBitAdam(module.parameters(), lr=ADAM_LR, warmup_steps=warmup_steps)
    elif name == "ddp-adam":
        optimizer = Adam(module.parameters(), lr=ADAM_LR)
    else:
        optimizer = SGD(module.parameters(), lr=lr, momentum=0.0 if name == "topk_dgc" else 0.9)
    if name == "compute":
        return Arm(name=name, model=module, optimizer=optimizer, run=None)
    if name.startswith("ddp"):
        return Arm(name=name, model=_torch_ddp(name, module, bucket_mb), optimizer=optimizer, run=None)
    ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    run = pliant.relax(ddp, optimizer, _what(name, total_steps))
    return Arm(name=name, model=ddp, optimizer=optimizer, run=run)


def _what(name: str, total_steps: int) -> "str | pliant.SyncPlan":
    """Return what to relax with; settings change the algorithm alone, small parameters are spared as by bare name."""
    bare, settings = settings_of(name)
    warmup_steps = int(settings.pop("warmup_steps", 0))
    if not settings and not warmup_steps and bare in ALGORITHMS:
        return name
    if bare == "qsgd4":
        algorithm: Algorithm = pliant.qsgd(bits=4)
    elif bare == "topk_dgc":
        algorithm = pliant.topk(momentum=0.9, ramp_steps=total_steps // 5)
    else:
        try:
            algorithm = getattr(pliant, bare)(**settings)
        except TypeError as error:
            raise ValueError(f"{bare} does not take the settings of {name!r}: {error}") from error
    if warmup_steps:
        algorithm = pliant.after(warmup_steps, pliant.bf16(), then=algorithm)
    return recommended(algorithm, name)


def _torch_ddp(name: str, module: nn.Module, bucket_mb: float) -> DistributedDataParallel:
    if name == "ddp-powersgd":
        # On Gloo the hook aborts with more than one bucket, so the first, usually 1 MB, must hold all as well.
        with _first_bucket_bytes(_ONE_BUCKET_MB << 20):
            ddp = DistributedDataParallel(module, bucket_cap_mb=_ONE_BUCKET_MB, gradient_as_bucket_view=True)
        state = PowerSGDState(None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook)
        return ddp
    ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    if name == "ddp-bf16":
        ddp.register_comm_hook(None, _bf16_hook)
    return ddp


@contextmanager
def _first_bucket_bytes(num_bytes: int) -> Generator[None]:
    before = dist._DEFAULT_FIRST_BUCKET_BYTES  # pyright: ignore
    dist._DEFAULT_FIRST_BUCKET_BYTES = num_bytes  # pyright: ignore
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before  # pyright: ignore
