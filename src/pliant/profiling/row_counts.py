"""Rows of sparse gradients: how many a rank's gradient has, and how many of them ranks share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.comm.base import Comm

__all__ = ["SparseRowCounts"]


class SparseRowCounts:
    """Counts the rows of each sparse gradient, step by step; of the last one it keeps which they are."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._step: dict[str, tuple[Tensor, int]] = {}
        self._last: dict[str, tuple[Tensor, int]] = {}
        """Name -> rows of the last step's gradient, and rows of the table."""

    def take(self, name: str, gradient: Tensor) -> None:
        """Look at a parameter's gradient, if it is sparse; a later one of a step takes the place of an earlier one."""
        if gradient.is_sparse:
            self._step[name] = gradient.detach().coalesce().indices()[0].unique().cpu(), gradient.shape[0]

    def end_step(self) -> None:
        """Count what was taken."""
        for name, (rows, _) in self._step.items():
            self._counts.setdefault(name, []).append(len(rows))
        self._last |= self._step
        self._step = {}

    def share(self, names: Sequence[str], comm: Comm, device: torch.device) -> dict[str, tuple[float, float]]:
        """Return name -> mean rows of a rank in a step, and rows of the last step's mean over the sum of all ranks'.

        Collective; `names` are alike on all ranks, also where one has seen no gradient of a table.
        """
        sizes = torch.tensor([self._last[n][1] if n in self._last else 0 for n in names], device=device)
        comm.all_reduce(sizes, "max").wait()
        found: dict[str, tuple[float, float]] = {}
        for name, num_rows in zip(names, sizes.tolist(), strict=True):
            if num_rows:
                found[name] = self._share(name, num_rows, comm, device)
        return found

    def _share(self, name: str, num_rows: int, comm: Comm, device: torch.device) -> tuple[float, float]:
        counts = self._counts.get(name, [0])
        marks = torch.zeros(num_rows, dtype=torch.uint8)
        if name in self._last:
            marks[self._last[name][0]] = 1
        told = torch.tensor([sum(counts) / len(counts), float(marks.sum(dtype=torch.int64))], dtype=torch.float64)
        told, together = told.to(device), marks.to(device)
        comm.all_reduce(told).wait()
        comm.all_reduce(together, "max").wait()
        rows, last = told.tolist()
        return rows / comm.size, int(together.count_nonzero()) / last if last else 1.0
