"""Saved states of sharded models, cut anew for another number of ranks.

A parameter of extent n along the dimension that is divided has ceil(n / W) rows on each of W ranks, less on the last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from pliant.codecs import codec_from
from pliant.layouts.shards import RESIDUAL_CODEC

__all__ = ["Mesh", "ShardResize", "cut_of"]

Own = Mapping[str, Any]
"""State of one rank."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Place of a rank among `num_shards` that share a model, and among `num_replicas` that hold the same part."""

    shard: int
    num_shards: int
    replica: int
    num_replicas: int

    @classmethod
    def of(cls, place: Sequence[int]) -> Self:
        """Return the mesh of a rank's place, as `ShardedModel.place` has it."""
        shard, num_shards, replica, num_replicas = place
        return cls(shard=shard, num_shards=num_shards, replica=replica, num_replicas=num_replicas)

    @property
    def size(self) -> int:
        """Number of ranks in all."""
        return self.num_shards * self.num_replicas


def cut_of(extent: int, size: int, rank: int) -> slice:
    """Return the rows of a rank, of `extent` that are divided among `size`."""
    rows = -(-extent // size)
    return slice(min(extent, rank * rows), min(extent, (rank + 1) * rows))


class ShardResize:
    """Conversion of the states of one mesh's ranks to those of another mesh.

    Every new rank gets the mean over old ranks of their residuals of a whole parameter. A residual counts 1/n among n
    ranks, so the sum of what is sent and kept is conserved, to the rounding of the residual's own format. Copies and
    shards are put together and cut anew.

    Args:
        states: States of all old ranks.

    Raises:
        ValueError: They are not of all ranks of one mesh.

    """

    def __init__(self, states: Sequence[Own]) -> None:
        self.states = states
        """States of all old ranks."""
        self._meshes = [Mesh.of(own["shards"]["mesh"].tolist()) for own in states]
        first = self._meshes[0]
        self._num_shards = first.num_shards
        if first.size != len(states):
            raise ValueError(
                f"{len(states)} ranks have saved a model that {first.num_replicas} x {first.num_shards} ranks share, "
                "as with tensor parallelism, whose parts are not put together here; resume with as many ranks."
            )
        self._cuts: dict[str, list[int]] = {name: cut.tolist() for name, cut in states[0]["shards"]["cuts"].items()}
        self._means: dict[tuple[str, ...], dict[str, Tensor]] = {}

    def mesh(self, rank: int, size: int, num_shards: int | None = None) -> Mesh:
        """Return the place of a new rank, as `init_device_mesh` numbers them.

        Args:
            rank: The rank.
            size: Ranks in all.
            num_shards: Ranks that share a model; None for all, or with replicas for as many as before.

        """
        has_replicas = self._meshes[0].num_replicas > 1
        shards = num_shards or (self._num_shards if has_replicas else size)
        if size % shards:
            raise ValueError(
                f"{size} ranks cannot be replicas of {shards} shards; resize to a multiple, or give num_shards."
            )
        if shards == 1 and self.states[0]["shards"]["groups"]:
            raise ValueError(
                "the states hold what is owed to shards on other ranks, or copies of them, but a model that is not "
                "divided exchanges neither; resize to more ranks, or switch() to 'allreduce' and make a step first."
            )
        replica, shard = divmod(rank, shards)
        return Mesh(shard=shard, num_shards=shards, replica=replica, num_replicas=size // shards)

    # - Tensors

    def whole(self, name: str, get: Callable[[Own], Tensor], replica: int = 0) -> Tensor:
        """Return a tensor of a parameter as a whole, whose parts lie on the ranks of one replica."""
        held = sorted((mesh.shard, k) for k, mesh in enumerate(self._meshes) if mesh.replica == replica)
        return torch.cat([get(self.states[k]) for _, k in held], self._cuts[name][0])

    def part(self, name: str, whole: Tensor, mesh: Mesh) -> Tensor:
        """Return a new rank's part of a whole tensor; a copy."""
        dim, *shape = self._cuts[name]
        rows = cut_of(shape[dim], mesh.num_shards, mesh.shard)
        return whole.narrow(dim, rows.start, rows.stop - rows.start).clone()

    def is_part(self, name: str, value: Tensor, rank: int) -> bool:
        """Say whether a tensor of an old rank has the shape of its part of a parameter."""
        return tuple(value.shape) == self._local_shape(name, self._num_shards, self._meshes[rank].shard)

    def like_weights(self, name: str, get: Callable[[Own], Any], mesh: Mesh) -> Any:
        """Return a new rank's part of a value with one element for each of a parameter's; others are the first's."""
        first = get(self.states[0])
        if name not in self._cuts or not isinstance(first, Tensor) or not self.is_part(name, first, 0):
            return first
        return self.part(name, self.whole(name, get), mesh)

    def mean(self, name: str, get: Callable[[Own], Tensor], mesh: Mesh) -> Tensor:
        """Return a new rank's part of the mean over replicas of what ranks hold for their part of a parameter."""
        replicas = range(self._meshes[0].num_replicas)
        total = torch.stack([self.whole(name, get, r).double() for r in replicas]).mean(0)
        return self.part(name, total.to(get(self.states[0]).dtype), mesh)

    # - Residuals and copies of the run

    def shards(self, mesh: Mesh) -> dict[str, Any]:
        """Return the state of the run's shards on a new rank."""
        own: Own = self.states[0]["shards"]
        groups = {
            group: {key: self._converted(group, key, mesh) for key in kept} for group, kept in own["groups"].items()
        }
        place = (mesh.shard, mesh.num_shards, mesh.replica, mesh.num_replicas)
        return {"mesh": torch.tensor(place), "cuts": own["cuts"], "groups": groups}

    def _converted(self, group: str, key: str, mesh: Mesh) -> dict[str, Any]:
        kept: Own = self.states[0]["shards"]["groups"][group][key]
        names = sorted(kept["of"], key=lambda name: int(kept["of"][name]))
        if key == "owed":
            rows = self._packed(self._mean_of(group, key, "rows", names), names, mesh, padded=True)
            return {"of": kept["of"], "rows": rows.view(mesh.num_shards, -1)}
        if "residual" in kept:
            found = self._packed(self._mean_of(group, key, "residual", names), names, mesh, padded=False)
            return {"of": kept["of"], "residual": _as_kept(found, kept["residual"])}
        own = self._replica_of(group, key, names)
        parts = [self.part(name, own[name], mesh).flatten() for name in names]
        return {"of": kept["of"], "begun": kept["begun"], "replica": torch.cat(parts)}

    def _mean_of(self, group: str, key: str, kind: str, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the mean over old ranks of their residuals of whole parameters."""
        at = group, key, kind
        if at not in self._means:
            totals: dict[str, Tensor] = {}
            for own in self.states:  # one after another: a residual may have the size of the model
                held = _as_float(own["shards"]["groups"][group][key][kind], self._numel(names))
                for name, x in self._unpacked(held, names, padded=key == "owed").items():
                    totals[name] = totals[name].add_(x) if name in totals else x.double()
            self._means[at] = {name: total.div_(len(self.states)).float() for name, total in totals.items()}
        return self._means[at]

    def _replica_of(self, group: str, key: str, names: Sequence[str]) -> dict[str, Tensor]:
        at = group, key, "replica"
        if at not in self._means:

            def of(name: str) -> Callable[[Own], Tensor]:
                return lambda own: self._split_own(own, own["shards"]["groups"][group][key]["replica"], names)[name]

            self._means[at] = {name: self.whole(name, of(name)) for name in names}
        return self._means[at]

    def _split_own(self, own: Own, vector: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        mesh = Mesh.of(own["shards"]["mesh"].tolist())
        shapes = [self._local_shape(name, mesh.num_shards, mesh.shard) for name in names]
        pieces = vector.split([torch.Size(shape).numel() for shape in shapes])
        return {n: piece.view(shape) for n, piece, shape in zip(names, pieces, shapes, strict=True)}

    # - Vectors in which parameters lie shard by shard

    def _local_shape(self, name: str, size: int, rank: int) -> tuple[int, ...]:
        dim, *shape = self._cuts[name]
        rows = cut_of(shape[dim], size, rank) if shape else slice(0, 1)
        return (*shape[:dim], rows.stop - rows.start, *shape[dim + 1 :]) if shape else ()

    def _padded_numel(self, name: str, size: int) -> int:
        return torch.Size(self._local_shape(name, size, 0)).numel()

    def _numel(self, names: Sequence[str]) -> int:
        return sum(torch.Size(self._cuts[name][1:]).numel() for name in names)

    def _unpacked(self, vector: Tensor, names: Sequence[str], *, padded: bool) -> dict[str, Tensor]:
        """Return whole parameters of a vector with shard 0's parts, then shard 1's, and so on."""
        vector, at = vector.reshape(-1), 0
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        for rank in range(self._num_shards):
            for name in names:
                shape = self._local_shape(name, self._num_shards, rank)
                numel = torch.Size(shape).numel()
                parts[name].append(vector[at : at + numel].view(shape))
                at += self._padded_numel(name, self._num_shards) if padded else numel
        return {name: torch.cat(held, self._cuts[name][0]) for name, held in parts.items()}

    def _packed(self, whole: Mapping[str, Tensor], names: Sequence[str], mesh: Mesh, *, padded: bool) -> Tensor:
        """Return a vector of whole parameters as a new mesh divides them: the other direction."""
        pieces: list[Tensor] = []
        for rank in range(mesh.num_shards):
            place = Mesh(shard=rank, num_shards=mesh.num_shards, replica=0, num_replicas=1)
            for name in names:
                piece = self.part(name, whole[name], place).flatten()
                short = self._padded_numel(name, mesh.num_shards) - piece.numel() if padded else 0
                pieces.append(torch.nn.functional.pad(piece, (0, short)))
        return torch.cat(pieces)


def _as_float(kept: Tensor, numel: int) -> Tensor:
    if kept.dtype != torch.uint8:
        return kept
    decoded = torch.empty(numel, dtype=torch.float32)
    codec_from(RESIDUAL_CODEC).decode(kept.cpu(), decoded)
    return decoded


def _as_kept(x: Tensor, like: Tensor) -> Tensor:
    if like.dtype != torch.uint8:
        return x
    codec = codec_from(RESIDUAL_CODEC)
    payload = torch.zeros(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, 0)
    return payload
