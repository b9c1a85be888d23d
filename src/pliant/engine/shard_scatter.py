"""Gradients of one parameter group on their way to the ranks that hold their shards."""

from typing import Protocol

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec, codec_from
from pliant.collectives.halves import ToOwners
from pliant.collectives.pairwise import mean_of_parts
from pliant.collectives.rotation import rotate
from pliant.collectives.scratch import Scratch
from pliant.comm.base import Comm
from pliant.engine.shard_layout import PackedShards
from pliant.layouts.shards import RESIDUAL_CODEC
from pliant.spec import ReduceScatter

__all__ = ["CodedScatter", "ExactScatter", "ShardScatter", "shard_scatter"]


class ShardScatter(Protocol):
    """The mean of some parameters' gradients, each part on the rank that owns it."""

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors that a resumed run needs; live."""
        ...

    def owed(self, rows: Tensor) -> None:
        """Add the residual of this rank to rows, (size, row_numel) float32."""
        ...

    def rescale(self, factor: float) -> None:
        """Multiply the residual by a factor."""
        ...

    def __call__(self, rows: Tensor, output: Tensor, seed: int) -> None:
        """Put this rank's part of the mean of rows, (size, row_numel), into output, (row_numel,)."""
        ...


class ExactScatter:
    """Sums in the dtype that is given, pairwise.

    Args:
        shards: Places of the gradients.
        comm: Ranks that average.
        scratch: Memory of the communication thread.

    """

    def __init__(self, shards: PackedShards, comm: Comm, scratch: Scratch) -> None:
        self._shards, self._comm, self._scratch = shards, comm, scratch

    @property
    def state(self) -> dict[str, Tensor]:
        return {}

    def owed(self, rows: Tensor) -> None: ...

    def rescale(self, factor: float) -> None: ...

    def __call__(self, rows: Tensor, output: Tensor, seed: int) -> None:
        vector = self._shards.pack(rows, rows.dtype, self._scratch)
        parts = [vector[part] for part in self._shards.parts]
        if len(parts[self._comm.rank]) == len(output):
            mean_of_parts(parts, output, self._comm, self._scratch)
            return
        own = self._scratch.take("own", (len(parts[self._comm.rank]),), output.dtype)
        mean_of_parts(parts, own, self._comm, self._scratch)
        self._shards.unpack_own(own, output)


class CodedScatter:
    """Sums of coded parts, with the error of the codec kept in full, in 8 bits or not at all.

    With a residual e, rank i sends C(g_i + e_i) of each other rank's part, and keeps e_i <- g_i + e_i - C(g_i + e_i);
    its own part is not coded. With a full residual, size * (sum of results) + (sum over ranks of residuals) = sum
    of all gradients. A residual in 8 bits is rounded once more (Xie et al., LoCo, arXiv:2407.04480, keep such an
    average as well). Without one, gradients are rotated, and rounded without bias (Jia et al., SDP4Bit,
    arXiv:2410.15526).

    Args:
        node: Setting of the plan.
        codec: Its codec.
        shards: Places of the gradients.
        comm: Ranks that average.
        scratch: Memory of the communication thread.
        device: Device of the buffers.

    """

    def __init__(
        self,
        node: ReduceScatter,
        codec: Codec,
        shards: PackedShards,
        comm: Comm,
        scratch: Scratch,
        device: torch.device,
    ) -> None:
        self._node, self._shards, self._comm, self._scratch = node, shards, comm, scratch
        pieces = shards.pieces(codec.granularity, device)
        stands = not is_accelerator(device)  # where those of all parameters would be held in pinned memory
        self._half, self._own_pieces = ToOwners(codec, pieces, comm, device, stands=stands), pieces[comm.rank]
        self._keeper: Codec = codec_from(RESIDUAL_CODEC)
        self._residual = torch.zeros(shards.numel if node.residual == "full" else 0, dtype=torch.float32, device=device)
        size = self._keeper.nbytes(shards.numel) if node.residual == "int8" else 0
        self._kept = torch.zeros(size, dtype=torch.uint8, device=device)
        if node.residual == "int8":
            self._keeper.encode(torch.zeros(shards.numel, dtype=torch.float32, device=device), self._kept, 0)

    @property
    def state(self) -> dict[str, Tensor]:
        return {"full": {"residual": self._residual}, "int8": {"residual": self._kept}, "none": {}}[self._node.residual]

    def owed(self, rows: Tensor) -> None:
        residual = self._load()
        if residual is not None:
            held = torch.zeros_like(rows)
            self._shards.unpack(residual, held)
            rows.add_(held)

    def rescale(self, factor: float) -> None:
        if (residual := self._load()) is not None:
            self._store(residual.mul_(factor))

    def __call__(self, rows: Tensor, output: Tensor, seed: int) -> None:
        x = self._shards.pack(rows, torch.float32, self._scratch)
        own = x[self._shards.parts[self._comm.rank]]
        if self._node.rotated:
            for part in self._shards.parts:
                rotate(x[part])
        residual = self._load()
        posted = self._half.send(x, residual, seed + self._comm.rank + 1)
        for k, piece in enumerate(self._own_pieces):
            self._half.add(k, posted, piece.of(x))
            self._half.stand(k)
        own.div_(self._comm.size)
        if self._node.rotated:
            rotate(own)
        self._shards.unpack_own(own, output)
        if residual is not None:
            self._store(residual)
        self._half.wait(posted)

    def _load(self) -> Tensor | None:
        if self._node.residual == "none":
            return None
        if self._node.residual == "full":
            return self._residual
        residual = self._scratch.take("residual", (self._shards.numel,), torch.float32)
        self._keeper.decode(self._kept, residual)
        return residual

    def _store(self, residual: Tensor) -> None:
        if self._node.residual == "int8":
            self._keeper.encode(residual, self._kept, 0)


def shard_scatter(
    node: ReduceScatter | None, shards: PackedShards, comm: Comm, scratch: Scratch, device: torch.device
) -> ShardScatter:
    """Return what carries out a node."""
    if node is None or node.codec is None:
        return ExactScatter(shards, comm, scratch)
    return CodedScatter(node, codec_from(node.codec), shards, comm, scratch, device)
