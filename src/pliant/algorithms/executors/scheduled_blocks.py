"""Sum of blocks that each rank has selected for itself, by a schedule made for their bitmap."""

import torch
from torch import Tensor

from pliant.collectives import BlockGrid, BlockResult
from pliant.collectives.rounds import comm_for_rows
from pliant.comm.base import Comm
from pliant.schedules import SparseAllReduce
from pliant.spec import Topology

__all__ = ["ScheduledBlockSum", "require_topology"]


class ScheduledBlockSum:
    """Mean of blocks by a `SparseAllReduce`, in which dense tensors are blocks that all ranks hold.

    Bytes: (n-1) (blocks/8 + 8), and the schedule's, which depend on the selections.

    Args:
        grid: Of the vectors to come.
        topology: Network for which schedules are made.
        comm: Ranks that take part.

    Raises:
        ValueError: The topology is for another number of ranks.

    """

    def __init__(self, grid: BlockGrid, topology: Topology, comm: Comm) -> None:
        require_topology(topology, comm.size)
        self._grid, self._size = grid, comm.size
        dtype = torch.float32 if grid.parts.selection.value_bits == 32 else torch.bfloat16
        self._blocks = grid.elements(torch.ones(len(grid.starts), dtype=torch.bool, device=grid.device))
        self._x = torch.zeros(grid.parts.numel, dtype=dtype, device=grid.device)
        dense = [len(grid.dense)] if len(grid.dense) else []
        numels = [*grid.numels.tolist(), *dense]
        gather = comm_for_rows(comm, -(-len(numels) // 8), grid.device)
        self._sum = SparseAllReduce(numels, topology, comm, like=self._x, gather=gather)

    def __call__(self, x: Tensor, chosen: Tensor, told: Tensor, *, poisoned: bool) -> BlockResult:
        """Exchange the chosen blocks, bool (num_blocks,), of x, float32 (numel,); scores are not told."""
        held = [*chosen.tolist(), *([True] if len(self._grid.dense) else [])]
        whole = torch.cat([self._blocks, self._grid.dense])
        self._x.copy_(x[whole])
        index = torch.cat([self._grid.elements(chosen), self._grid.dense])
        sent = x[index].to(self._x.dtype).to(torch.float32)
        if poisoned:
            self._x.fill_(torch.nan)
        self._sum(self._x, held)
        means = self._x.to(torch.float32, copy=True).div_(self._size)
        return BlockResult(
            index=index, sent=sent, means=((whole, means),), scores=None, sound=bool(means.isfinite().all())
        )


def require_topology(topology: Topology, num_ranks: int) -> None:
    """Raise ValueError for a topology of another number of ranks than exchange blocks."""
    if topology.num_ranks != num_ranks:
        raise ValueError(
            f"the plan's topology has {topology.num_ranks} ranks, but {num_ranks} exchange blocks; probe this cluster, "
            "or leave the topology out."
        )
