"""All-gathers of the weights of one parameter group, exact or coded."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.codecs import Codec, codec_from
from pliant.collectives.halves import FromOwners
from pliant.collectives.pairwise import gather_parts
from pliant.collectives.scratch import Scratch
from pliant.comm.base import Comm
from pliant.engine.shard_layout import PackedShards
from pliant.spec import WeightGather

__all__ = ["CodedGather", "CodedShards", "DifferenceGather", "ExactGather", "ShardGather", "shard_gather"]


class ShardGather(ABC):
    """The gather of some parameters' weights.

    Args:
        shards: Places of the weights.
        comm: Ranks that gather.
        scratch: Memory of the communication thread.

    """

    def __init__(self, shards: PackedShards, comm: Comm, scratch: Scratch) -> None:
        self._shards, self._comm, self._scratch = shards, comm, scratch

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors that a resumed run needs; copies."""
        return {}

    @state.setter
    def state(self, saved: dict[str, Tensor]) -> None:
        if saved:
            raise ValueError(f"this gather keeps nothing, but a state has {', '.join(saved)}.")

    @abstractmethod
    def gather(self, rows: Tensor, seed: int) -> None:
        """Fill rows, (size, row_numel), of which this rank's own is there; all ranks get the same."""

    @abstractmethod
    def again(self, rows: Tensor) -> None:
        """Fill rows once more from what the last gather has received; no communication."""

    def restore(self, rows: Tensor, seed: int) -> None:
        """Fill rows as `again` would before the state was saved, of which each rank has its own part."""
        self.gather(rows, seed)

    def _own_weights(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return a vector of all ranks' weights, (numel,) float32, of which only this rank's part is filled; and it."""
        vector = self._scratch.take("weights", (self._shards.numel,), torch.float32)
        own = vector[self._shards.parts[self._comm.rank]]
        self._shards.pack_own(rows, own)
        return vector, own


class ExactGather(ShardGather):
    """Weights in the dtype that is given, pairwise.

    Args:
        shards: Places of the weights.
        comm: Ranks that gather.
        scratch: Memory of the communication thread.
        keeps: Whether `again` will be called, for which all weights are kept.

    """

    def __init__(self, shards: PackedShards, comm: Comm, scratch: Scratch, *, keeps: bool) -> None:
        super().__init__(shards, comm, scratch)
        self._keeps, self._held = keeps, torch.empty(0)

    def gather(self, rows: Tensor, seed: int) -> None:
        vector = self._shards.pack(rows, rows.dtype, self._scratch)
        gather_parts([vector[part] for part in self._shards.parts], self._comm)
        self._shards.unpack(vector, rows)
        if self._keeps:
            self._held = vector.clone() if self._held.numel() != vector.numel() else self._held.copy_(vector)

    def again(self, rows: Tensor) -> None:
        self._shards.unpack(self._held, rows)


class CodedShards:
    """Coded parts of all ranks, as the last exchange has brought them.

    Args:
        codec: Any codec.
        shards: Places of the weights.
        comm: Ranks that gather.
        device: Device of the buffers.
        stands: Whether parts are decoded once, so that receives of the next ones stand from then on; not on an
            accelerator, where those of all parameters would be held in pinned memory.

    """

    def __init__(self, codec: Codec, shards: PackedShards, comm: Comm, device: torch.device, *, stands: bool) -> None:
        self._pieces = shards.pieces(codec.granularity, device)
        self._half = FromOwners(codec, self._pieces, comm, device, stands=stands and not is_accelerator(device))

    def swap(self, vector: Tensor, seed: int) -> None:
        """Send this rank's part of a vector, (numel,), and receive all others'."""
        self._half.swap(vector, seed)

    def decode(self, vector: Tensor, *, add: bool = False) -> None:
        """Decode all parts, this rank's own too, over a vector, (numel,), or add them to it."""
        for rank, pieces in enumerate(self._pieces):
            for k in range(len(pieces)):
                self._half.decode_piece(rank, k, vector, add=add)
        for k in range(self._half.num_rounds):
            self._half.stand(k)


class CodedGather(ShardGather):
    """Coded weights; every rank decodes the same payloads, its own too, so that all compute with the same weights.

    Args:
        shards: Places of the weights.
        comm: Ranks that gather.
        scratch: Memory of the communication thread.
        coded: Coded weights of all ranks.

    """

    def __init__(self, shards: PackedShards, comm: Comm, scratch: Scratch, coded: CodedShards) -> None:
        super().__init__(shards, comm, scratch)
        self._coded = coded

    def gather(self, rows: Tensor, seed: int) -> None:
        vector, _ = self._own_weights(rows)
        self._coded.swap(vector, seed)
        self.again(rows)

    def again(self, rows: Tensor) -> None:
        vector = self._shards.room(rows, torch.float32, self._scratch)
        self._coded.decode(vector)
        self._shards.unpack(vector, rows)


class DifferenceGather(ShardGather):
    """Coded changes of the weights since the last gather, added to a copy that all ranks keep alike.

    The first gather is exact. Rank i sends C(w_i - r_i) of its shard, and all ranks, it too, add what is decoded to r;
    so a coding error is part of the next difference. Jia et al., SDP4Bit (arXiv:2410.15526).

    Args:
        shards: Places of the weights.
        comm: Ranks that gather.
        scratch: Memory of the communication thread.
        coded: Coded changes of all ranks.
        device: Device of the copy.

    """

    def __init__(
        self, shards: PackedShards, comm: Comm, scratch: Scratch, coded: CodedShards, device: torch.device
    ) -> None:
        super().__init__(shards, comm, scratch)
        self._coded = coded
        self._replica = torch.zeros(shards.numel, dtype=torch.float32, device=device)
        self._own = self._replica[shards.parts[comm.rank]]
        self._begun, self._is_whole = False, False
        """Whether the own part of the copy holds weights; whether all of it does."""

    @property
    def state(self) -> dict[str, Tensor]:
        return {"replica": self._own.clone(), "begun": torch.tensor(int(self._begun))}

    @state.setter
    def state(self, saved: dict[str, Tensor]) -> None:
        self._own.copy_(saved["replica"])
        self._begun, self._is_whole = bool(saved["begun"]), False

    def gather(self, rows: Tensor, seed: int) -> None:
        if not self._begun:
            self._shards.pack_own(rows, self._own)
        self._complete()
        if self._begun:
            vector, own = self._own_weights(rows)
            own.sub_(self._own)
            self._coded.swap(vector, seed)
            self._coded.decode(self._replica, add=True)
        self._begun = True
        self.again(rows)

    def again(self, rows: Tensor) -> None:
        self._shards.unpack(self._replica, rows)

    def restore(self, rows: Tensor, seed: int) -> None:
        self._complete()
        self.again(rows)

    def _complete(self) -> None:
        """Gather the copy itself: in the beginning, and after a resume, since it was saved rank by rank."""
        if not self._is_whole:
            gather_parts([self._replica[part] for part in self._shards.parts], self._comm)
            self._is_whole = True


def shard_gather(
    node: WeightGather | None, shards: PackedShards, comm: Comm, scratch: Scratch, device: torch.device
) -> ShardGather:
    """Return what carries out a node."""
    if node is None or node.codec is None:
        return ExactGather(shards, comm, scratch, keeps=node is not None and not node.regather)
    coded = CodedShards(codec_from(node.codec), shards, comm, device, stands=node.reads_once)
    if node.differences:
        return DifferenceGather(shards, comm, scratch, coded, device)
    return CodedGather(shards, comm, scratch, coded)
