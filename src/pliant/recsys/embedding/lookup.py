"""One rank's side of a lookup: what it asks of each owner, how it pools what comes, which gradients it sends back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from pliant.codecs.kernels import kernels_for
from pliant.recsys.embedding.bags import BagBatch, BagRun
from pliant.recsys.embedding.groups import Group, ReplicatedGroup
from pliant.recsys.embedding.replicas import Replicas
from pliant.recsys.embedding.segments import divide_means, pool, segments, sum_rows, unit_segments
from pliant.recsys.embedding.shard import Request

__all__ = ["LocalLookup", "Lookup", "SumLookup", "VectorLookup", "look_up"]


class Lookup(Protocol):
    """Requests to owners, and the use of their answers."""

    batch: BagBatch
    num_hot: int
    """Ids, or distinct ones, that were found here."""
    requests: list[Request]
    """For each owner."""
    num_vectors: list[int]
    """Vectors that come from each owner."""

    def pooled(self, vectors: Tensor) -> Tensor:
        """Return what the bags pool to, float32 (num_bags, dim); `vectors` (sum of num_vectors, dim) by owner."""
        ...

    def gradients(self, gradient: Tensor) -> Tensor:
        """Return the gradients of those vectors, given that of the result; gradients of replicas are kept here."""
        ...


def look_up(group: Group, batch: BagBatch, replicas: Replicas | None) -> Lookup:
    """Return the lookup of a group's tables in a batch of all tables."""
    its = batch.select(group.indices)
    return SumLookup(group, its, replicas) if group.pools else VectorLookup(group, its, replicas)


class VectorLookup:
    """Distinct rows come, and are pooled here, in the order of the bags: bit for bit as if the table were whole."""

    def __init__(self, group: Group, batch: BagBatch, replicas: Replicas | None) -> None:
        self.batch = batch
        self._runs = batch.runs(group.tables)
        self._replicas = replicas
        keys = group.keys(batch)
        self._entries = segments(keys) if group.distinct else unit_segments(keys, keys // group.stride)
        keys, index = self._entries.keys, self._entries.index  # (entries,), by owner; (num_ids,)
        self._hot = found = group.find_hot(keys)
        self.num_hot = 0
        if found is not None:
            hot, slots = found
            self.num_hot = len(slots)
            cold = ~hot
            places = torch.where(hot, hot.cumsum(0) + (len(keys) - self.num_hot), cold.cumsum(0)) - 1
            index, keys = places.to(torch.int32)[index], keys[cold]
        self._index = index
        owners = keys // group.stride
        self.num_vectors = torch.bincount(owners, minlength=group.num_ranks).tolist()
        slots = (keys - owners * group.stride).to(torch.int32)
        self.requests = [Request(slots=part) for part in slots.split(self.num_vectors)]

    def pooled(self, vectors: Tensor) -> Tensor:
        if self._hot is not None and self._replicas is not None:
            vectors = torch.cat([vectors, self._replicas.rows.weights.index_select(0, self._hot[1])])
        return pool(vectors, self._index, self.batch, self._runs)

    def gradients(self, gradient: Tensor) -> Tensor:
        scaled = divide_means(gradient, self.batch, self._runs)
        summed = self._entries.sum(scaled, self.batch.lengths, _weights_of(self.batch, self._runs))
        if self._hot is None or self._replicas is None:
            return summed
        hot, slots = self._hot
        self._replicas.add(slots, summed[hot])
        return summed[~hot]


class SumLookup:
    """Owners pool: for each bag that needs rows of an owner one vector comes, and these are added in order of ranks."""

    def __init__(self, group: Group, batch: BagBatch, replicas: Replicas | None) -> None:
        self.batch = batch
        self._runs = batch.runs(group.tables)
        self._replicas = replicas
        keys = group.keys(batch)
        if not group.weighted:
            batch = replace(batch, weights=None)
        found = group.find_hot(keys)
        self._hot: BagBatch | None = None
        self.num_hot = 0
        if found is not None:
            hot, slots = found
            self._hot = replace(batch.where(hot), ids=slots)
            batch, keys = batch.where(~hot), keys[~hot]
            self.num_hot = len(slots)
        its = kernels_for(keys).by_owner(keys, batch.lengths, batch.weights, group.stride, group.num_ranks)
        self._bags, self.num_vectors = its.bags, its.num_bags  # (vectors,)
        self._by_bag = None if group.whole else segments(its.bags)
        num = its.num_ids
        by_rank = [None] * len(num) if its.weights is None else its.weights.split(num)
        parts = zip(its.slots.split(num), its.lengths.split(its.num_bags), by_rank, strict=True)
        self.requests = [Request(slots=s, lengths=b, weights=w) for s, b, w in parts]

    def pooled(self, vectors: Tensor) -> Tensor:
        out = vectors.new_zeros(self.batch.num_bags, vectors.shape[1])
        if self._by_bag is None:
            out[self._bags] = vectors
        else:
            out[self._by_bag.keys] = self._by_bag.sum(vectors)
        if self._hot is not None and self._replicas is not None:
            its = self._hot
            out += sum_rows(self._replicas.rows.weights, its.ids, its.starts(), its.weights)
        return divide_means(out, self.batch, self._runs)

    def gradients(self, gradient: Tensor) -> Tensor:
        scaled = divide_means(gradient, self.batch, self._runs)
        if self._hot is not None and self._replicas is not None:
            alike = segments(self._hot.ids)
            self._replicas.add(alike.keys, alike.sum(scaled, self._hot.lengths, self._hot.weights))
        return scaled.index_select(0, self._bags)


class LocalLookup:
    """All rows are here."""

    def __init__(self, local: ReplicatedGroup, batch: BagBatch, replicas: Replicas) -> None:
        self.batch = batch.select(local.indices)
        self._runs = self.batch.runs(local.tables)
        self._replicas = replicas
        self._slots = local.slots(self.batch)
        self.num_hot = len(self._slots)

    def pooled(self) -> Tensor:
        """Return what the bags pool to, float32 (num_bags, dim)."""
        return pool(self._replicas.rows.weights, self._slots, self.batch, self._runs)

    def keep_gradients(self, gradient: Tensor) -> None:
        """Keep the gradients of rows, given that of the result, until they are summed over ranks."""
        alike = segments(self._slots)
        scaled = divide_means(gradient, self.batch, self._runs)
        self._replicas.add(alike.keys, alike.sum(scaled, self.batch.lengths, _weights_of(self.batch, self._runs)))


def _weights_of(batch: BagBatch, runs: Sequence[BagRun]) -> Tensor | None:
    """Return the weights of ids, float32 (num_ids,), if any of these tables has some."""
    return batch.weights if any(run.weighted for run in runs) else None
