"""Profile of a training that a user brings: some of its steps, on this machine alone."""

from collections.abc import Mapping
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from pliant.codecs import codec_from
from pliant.planner import LOW_RANKS, lossy_codecs
from pliant.profiling.observe import observe
from pliant.profiling.own_factory import load_own_training
from pliant.spec import Workload

__all__ = ["profile_own_training"]

_STEPS, _WARM_UP_STEPS, _GRADIENT_STEPS = 5, 2, 3


def profile_own_training(where: str, *, errors: bool = False) -> tuple[Workload, str]:
    """Take some steps of a user's training; return its workload, and the class of its optimizer.

    The function finds a process group of this process alone, so that it may ask for rank and size. Nothing is kept of
    what the steps have trained.

    Args:
        where: Function that makes it, as in ``my:make``; see `load_own_training`.
        errors: Whether to measure codecs' errors on its gradients too, which takes longer.

    Raises:
        ValueError: The function is not there, or returns something else than a training.
        RuntimeError: It fails, or where backward begins could not be seen.

    """
    alone = not dist.is_initialized()
    if alone:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        own = load_own_training(where)
        first = own.batch(0)
        with observe(
            own.model,
            own.optimizer,
            steps=_STEPS,
            warmup_steps=_WARM_UP_STEPS,
            gradient_steps=_GRADIENT_STEPS if errors else 0,
            codecs=[codec_from(codec) for codec in lossy_codecs()] if errors else (),
            ranks=LOW_RANKS if errors else (),
            batch_size=_samples(first),
        ) as seen:
            for step in range(_WARM_UP_STEPS + _STEPS + (_GRADIENT_STEPS if errors else 0)):
                own.optimizer.zero_grad()
                own.loss(own.model, step).backward()
                own.optimizer.step()
        return seen.workload(where), type(own.optimizer).__name__
    finally:
        if alone:
            dist.destroy_process_group()


def _samples(batch: Any) -> int:
    """Return the samples of a batch: the first extent of the first tensor in it."""
    if isinstance(batch, Tensor):
        return max(1, batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(cast(Mapping[str, Any], batch).values())
    return next((_samples(each) for each in cast(list[Any], batch)), 1) if isinstance(batch, tuple | list) else 1
