"""Bytes of everybody's communication, counted alike: by what torch is asked to do."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class CountedBytes(TorchDispatchMode):
    """Adds up what this rank must send for the collectives that it calls while this is entered, in `sent_bytes`.

    As RecordedComm counts: an all-reduce of N bytes sends 2 (n-1)/n N, all-gather and reduce-scatter n-1 parts, an
    all-to-all all but the own part, a broadcast n-1 times N at its root.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.sent_bytes += self._sent(func._opname, args)
        return func(*args, **(kwargs or {}))

    def _sent(self, name: str, args: Sequence[Any]) -> float:
        rank, size = dist.get_rank(), dist.get_world_size()
        if name.startswith("alltoall_base"):
            _, x, _, _, splits = args[:5]
            own = splits[rank] / max(sum(splits), 1) if splits else 1 / size
            return x.nbytes * (1 - own)
        if name.startswith("alltoall"):
            return float(sum(x.nbytes for k, x in enumerate(args[1]) if k != rank))
        if name.startswith("allreduce"):
            return 2 * (size - 1) / size * _nbytes(args[0])
        if name.startswith(("allgather", "_allgather")):
            return float((size - 1) * _nbytes(args[1]))
        if name.startswith(("reduce_scatter", "_reduce_scatter")):
            return (size - 1) / size * _nbytes(args[1])
        if name.startswith("broadcast"):
            return float((size - 1) * _nbytes(args[0])) if args[2] == rank else 0.0
        if name.startswith("send"):
            return float(_nbytes(args[0]))
        return 0.0


def _nbytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(_nbytes(each) for each in value)


def counting() -> CountedBytes:
    """Return a counter, to be entered for one step."""
    torch.autograd.set_multithreading_enabled(False)  # backward's collectives are counted where they are called
    return CountedBytes()
