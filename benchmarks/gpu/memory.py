"""Memory that a run needs beside what DDP needs, beside what its algorithm says that it keeps.

On the CPU, where torch does not count, only the second is said.
"""

import gc

import torch
import torch.distributed as dist
from checks import Check
from pair import run_pair
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant

__all__ = ["of_pair", "run"]

_NAMES = "allreduce", "bytegrad", "onebit", "topk", "powersgd", "streaming_diloco"
_DEPTH = 24
"""Layers, so many that what is made and dropped within a bucket is little beside them."""
_PAYLOADS = 4.0
"""Bytes for each parameter that payloads, buffers of pieces and flags may take."""


def run(device: str) -> None:
    run_pair("memory", device, 55)


def of_pair(device: str) -> None:
    width = 2048 if device == "cuda" else 256
    for name in _NAMES:
        plain, _ = _peak(device, width, None)
        peak, kept = _peak(device, width, name)
        if device != "cuda":
            Check(name=name, figure=f"keeps {kept:.2f} bytes a parameter").say()
            continue
        held = peak - plain <= kept + _PAYLOADS
        figure = f"{peak - plain:.2f} bytes a parameter more than DDP"
        Check(name=name, figure=figure, bound=f"{kept + _PAYLOADS:.2f}", passed=held, note=f"keeps {kept:.2f}").say()


def _peak(device: str, width: int, name: str | None) -> tuple[float, float]:
    """Return the peak of a few steps, and what the algorithm keeps: bytes for each parameter of this rank."""
    dist.barrier()
    torch.manual_seed(0)
    if device == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_DEPTH))).to(device)
    numel = sum(p.numel() for p in model.parameters())
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept, x = 0.0, torch.randn(8, width, device=device)
    if name is None:
        _train(ddp, optimizer, x)
    else:
        with pliant.relax(ddp, optimizer, name, timeout_s=40) as run_:
            _train(run_.model, optimizer, x)
            kept = sum(t.nbytes for slots in run_._gradients.store.tensors.values() for t in slots.values()) / numel
    return (torch.cuda.max_memory_allocated() - before) / numel if device == "cuda" else 0.0, kept


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
