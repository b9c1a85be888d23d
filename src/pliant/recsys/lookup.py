"""One rank's side of a lookup: what it asks of each owner, how it pools what comes, which gradients it sends back."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pliant.recsys.bags import Batch, Run
from pliant.recsys.groups import Group, Local
from pliant.recsys.replicas import Replicas
from pliant.recsys.requests import Request
from pliant.recsys.segments import in_order, mean_divisors, pool, segments, sum_rows

__all__ = ["LocalLookup", "Lookup", "SumLookup", "VectorLookup", "look_up"]


class Lookup(Protocol):
    """What is asked of owners, and what becomes of their answers."""

    batch: Batch
    num_hot: int
    """Ids, or distinct ones, that were found here."""
    requests: list[Request]
    """For each owner."""
    num_vectors: list[int]
    """That come from each owner."""

    def pooled(self, vectors: Tensor) -> Tensor:
        """Return what the bags pool to, float32 (num_bags, dim); `vectors` (sum of num_vectors, dim) by owner."""
        ...

    def gradients(self, gradient: Tensor) -> Tensor:
        """Return the gradients of those vectors, given that of the result; gradients of replicas are kept here."""
        ...


def look_up(group: Group, batch: Batch, replicas: Replicas | None) -> Lookup:
    """Return the lookup of a group's tables in a batch of all tables."""
    its = batch.select(group.indices)
    return SumLookup(group, its, replicas) if group.pools else VectorLookup(group, its, replicas)


class VectorLookup:
    """Distinct rows come, and are pooled here, in the order of the bags: bit for bit as if the table were whole."""

    def __init__(self, group: Group, batch: Batch, replicas: Replicas | None) -> None:
        self.batch = batch
        self._runs = batch.runs(group.tables)
        self._replicas = replicas
        keys = group.keys(batch)
        self._sorted = segments(keys) if group.distinct else segments(keys // group.stride).apart(keys)
        keys = self._sorted.keys  # (entries,), by owner
        index = self._sorted.inverse()
        self._hot = found = group.find_hot(keys)
        self.num_hot = 0
        if found is not None:
            hot, slots = found
            self.num_hot = len(slots)
            cold = ~hot
            places = torch.where(hot, hot.cumsum(0) + (len(keys) - self.num_hot), cold.cumsum(0)) - 1
            index, keys = places[index], keys[cold]
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
        divisors = mean_divisors(self.batch, self._runs)
        scaled = gradient if divisors is None else gradient / divisors
        summed = self._sorted.sum(scaled, self.batch.bags, _weights_of(self.batch, self._runs))
        if self._hot is None or self._replicas is None:
            return summed
        hot, slots = self._hot
        self._replicas.add(slots, summed[hot])
        return summed[~hot]


class SumLookup:
    """Owners pool: for each bag that needs rows of an owner one vector comes, and these are added in order of ranks."""

    def __init__(self, group: Group, batch: Batch, replicas: Replicas | None) -> None:
        self.batch = batch
        self._runs = batch.runs(group.tables)
        self._replicas = replicas
        keys = group.keys(batch)
        owners = keys // group.stride
        slots = (keys - owners * group.stride).to(torch.int32)
        found = group.find_hot(keys)
        self._hot: tuple[Tensor, Tensor] | None = None
        self.num_hot = 0
        order = torch.sort(owners, stable=True)[1]  # ids by owner, then by bag
        if found is not None:
            hot, hot_slots = found
            self._hot = hot.nonzero().view(-1), hot_slots
            self.num_hot = len(hot_slots)
            order = order[~hot[order]]
        owners, bags, slots = owners[order], batch.bags[order], slots[order]
        pairs = in_order(owners * batch.num_bags + bags)
        lengths = torch.diff(pairs.starts, append=pairs.starts.new_tensor([len(order)])).to(torch.int32)
        self._bags = bags[pairs.starts]  # (vectors,)
        self._by_bag = None if group.whole else segments(self._bags)
        n = group.num_ranks
        num_ids = torch.bincount(owners, minlength=n).tolist()
        self.num_vectors = torch.bincount(owners[pairs.starts], minlength=n).tolist()
        weights = batch.weights[order].split(num_ids) if group.weighted and batch.weights is not None else [None] * n
        parts = zip(slots.split(num_ids), lengths.split(self.num_vectors), weights, strict=True)
        self.requests = [Request(slots=s, lengths=b, weights=w) for s, b, w in parts]

    def pooled(self, vectors: Tensor) -> Tensor:
        out = vectors.new_zeros(self.batch.num_bags, vectors.shape[1])
        if self._by_bag is None:
            out[self._bags] = vectors
        else:
            out[self._by_bag.keys] = self._by_bag.sum(vectors)
        if self._hot is not None and self._replicas is not None:
            at, slots = self._hot
            lengths = torch.bincount(self.batch.bags[at], minlength=self.batch.num_bags)
            out += sum_rows(self._replicas.rows.weights, slots, lengths.cumsum(0) - lengths, self._weights(at))
        divisors = mean_divisors(self.batch, self._runs)
        return out if divisors is None else out.div_(divisors)

    def gradients(self, gradient: Tensor) -> Tensor:
        divisors = mean_divisors(self.batch, self._runs)
        scaled = gradient if divisors is None else gradient / divisors
        if self._hot is not None and self._replicas is not None:
            at, slots = self._hot
            alike = segments(slots)
            self._replicas.add(alike.keys, alike.sum(scaled, self.batch.bags[at], self._weights(at)))
        return scaled.index_select(0, self._bags)

    def _weights(self, at: Tensor) -> Tensor | None:
        weights = _weights_of(self.batch, self._runs)
        return None if weights is None else weights[at]


class LocalLookup:
    """All rows are here."""

    def __init__(self, local: Local, batch: Batch, replicas: Replicas) -> None:
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
        divisors = mean_divisors(self.batch, self._runs)
        alike = segments(self._slots)
        scaled = gradient if divisors is None else gradient / divisors
        self._replicas.add(alike.keys, alike.sum(scaled, self.batch.bags, _weights_of(self.batch, self._runs)))


def _weights_of(batch: Batch, runs: Sequence[Run]) -> Tensor | None:
    """Return the weights of ids, float32 (num_ids,), if any of these tables has some."""
    return batch.weights if any(run.weighted for run in runs) else None
