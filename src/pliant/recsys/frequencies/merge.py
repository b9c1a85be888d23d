"""Bring the counters of all ranks together."""

import io
from typing import Any

import numpy as np
import torch

from pliant.comm import Comm
from pliant.comm.small_gather import gather_small
from pliant.recsys.frequencies.counting import FrequencyCounter, TableCounter

__all__ = ["merge_counters"]


def merge_counters(counter: FrequencyCounter, comm: Comm) -> FrequencyCounter:
    """Return the sum of all ranks' counters, the same on every rank; the counters themselves stay as they are.

    Collective: the sizes (8 bytes), then the counters, padded to the largest, to everybody; without pickle.
    """
    file = io.BytesIO()
    states: dict[str, Any] = {}
    for t, table in enumerate(counter.tables):
        states |= {f"{t}.{name}": array for name, array in table.state().items()}
    np.savez(file, **states)
    mine = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    sizes = gather_small(comm, torch.tensor([mine.numel()])).flatten()
    longest = int(sizes.max())
    everybody = torch.zeros(comm.size * longest, dtype=torch.uint8)
    comm.all_gather(everybody, torch.cat([mine, mine.new_zeros(longest - mine.numel())])).wait()
    total: FrequencyCounter | None = None
    for part, size in zip(everybody.view(comm.size, longest), sizes.tolist(), strict=True):
        one = _counter(part[:size].numpy().tobytes(), [table.name for table in counter.tables])
        if total is None:
            total = one
        else:
            total.merge(one)
    return total or counter


def _counter(raw: bytes, names: list[str]) -> FrequencyCounter:
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        states = [
            {name.partition(".")[2]: file[name] for name in file.files if name.startswith(f"{t}.")}
            for t in range(len(names))
        ]
    counter = FrequencyCounter(())
    counter.tables = tuple(TableCounter.restored(name, state) for name, state in zip(names, states, strict=True))
    return counter
