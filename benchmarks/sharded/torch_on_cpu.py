"""Imported first by a copy of one of PyTorch's FSDP2 tests: lets its processes run on a CPU.

The tests' base class (torch.testing._internal.common_fsdp.FSDPTest of torch 2.13.0) skips where there are fewer
accelerators than ranks, also tests that are marked `allow_cpu=True`; so here it counts as many as there may be ranks.
Processes are forked, so that 8 of them need not import torch, and may take longer, on a busy machine.
"""

import torch
from torch.testing._internal import common_distributed
from torch.testing._internal.common_distributed import MultiProcessTestCase

torch.accelerator.device_count = lambda: 8
common_distributed.TIMEOUT_DEFAULT = 1200
_context = torch.multiprocessing.get_context("fork")
MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(_context.Process)
