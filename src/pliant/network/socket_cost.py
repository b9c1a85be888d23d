"""CPU time that messages take of a rank, apart from the time in which it waits for them."""

import statistics
import time

import torch

from pliant.comm import Comm
from pliant.comm.small_gather import gather_small

__all__ = ["socket_cpu_s"]

_SMALL_BYTES, _FIRST_BYTES, _MOST_BYTES = 8, 1 << 16, 1 << 22
_LEAST_SWAPS, _SWAPS = 4, 16


def socket_cpu_s(comm: Comm, limit_s: float, turns: int = 3) -> tuple[float, float]:
    """Return CPU seconds of this process for each message, and for each byte, that it sends or receives. Collective.

    All ranks hand messages round a ring and wait for each, as in exchanges. A message's cost is that of 8 bytes. A
    byte's follows from what longer messages cost beyond that: they are as long as some limit_s allows for all, 64 KB
    to 4 MB. CPU time is that of all threads, in the system too (`time.process_time`); so time on the wire has no part
    in it. Medians of `turns`; (0, 0) on one rank.

    Note: threads that are ranks of one process each count all of them; so there, both are upper bounds.
    """
    if comm.size == 1:
        return 0.0, 0.0
    start_s = time.perf_counter()
    _cpu_s(comm, _FIRST_BYTES, 1)
    longest_s = float(gather_small(comm, torch.tensor([time.perf_counter() - start_s], dtype=torch.float64)).max())
    fitting = limit_s / (turns * max(longest_s, 1e-6))  # swaps of a turn
    large = int(min(max(_FIRST_BYTES * fitting / 2, _FIRST_BYTES), _MOST_BYTES))
    swaps = min(max(int(fitting), _LEAST_SWAPS), _SWAPS)
    small_s = statistics.median(_cpu_s(comm, _SMALL_BYTES, swaps) for _ in range(turns))
    large_s = statistics.median(_cpu_s(comm, large, 2) for _ in range(turns))
    return small_s / 2, max(0.0, large_s - small_s) / (2 * (large - _SMALL_BYTES))


def _cpu_s(comm: Comm, num_bytes: int, count: int) -> float:
    """Return the CPU seconds of one of so many swaps: a message out and one in."""
    sent, received = torch.zeros(2, num_bytes, dtype=torch.uint8)
    following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.barrier()
    start_s = time.process_time()
    for _ in range(count):
        comm.exchange([(following, sent)], [(previous, received)]).wait()
    return (time.process_time() - start_s) / count
