"""One of two processes that share the device. Arguments: a module beside this one whose `of_pair` both call; a device.

They are no threads: all backward passes of a process on a device share one thread of torch.
"""

import importlib
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from checks import Check
from ranks import started
from torch import Tensor

__all__ = ["of_both", "run_pair"]


def run_pair(module: str, device: str, limit_s: float) -> None:
    """Let two processes call the `of_pair` of a module; their checks are said as they come."""
    if said := started(Path(__file__), [module, device], 2, limit_s, {"OMP_NUM_THREADS": "1"}):
        Check(name="both processes", figure=said[-300:], bound="no error", passed=False).say()


def of_both(x: Tensor) -> Tensor:
    """Return both ranks' values of a tensor, (2, ...), on the CPU."""
    found = [torch.empty_like(x, device="cpu") for _ in range(2)]
    dist.all_gather(found, x.cpu())
    return torch.stack(found)


def main() -> None:
    module, device = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    importlib.import_module(module).of_pair(device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
