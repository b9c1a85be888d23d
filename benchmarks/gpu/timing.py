"""The time of what runs on a device: medians of single calls, by events where there are any."""

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["copy_gb_s", "median_s", "numel_of"]

_QUEUED_CYCLES = 20_000_000
"""Some 10 ms of the device."""


def numel_of(device: str) -> int:
    """Return the elements of the vectors that are timed: 64 MiB of float32, or few on the CPU."""
    return 1 << 24 if device == "cuda" else 1 << 16


def median_s(call: Callable[[], object], device: str, times: int = 20) -> float:
    """Return the median seconds of a call, after three that are not counted."""
    for _ in range(3):
        call()
    if device != "cuda":
        found = []
        for _ in range(times):
            start_s = time.perf_counter()
            call()
            found.append(time.perf_counter() - start_s)
        return statistics.median(found)
    torch.cuda._sleep(_QUEUED_CYCLES)  # all calls are queued before the first begins, and none waits for the host
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    for before, after in marks:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) / 1e3 for before, after in marks)


def copy_gb_s(device: str) -> float:
    """Return the bytes read and written each second, in 10^9, by a copy on the device."""
    source = torch.ones(numel_of(device), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median_s(lambda: target.copy_(source), device) / 1e9
