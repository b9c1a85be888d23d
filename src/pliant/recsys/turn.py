"""One lookup of all tables on all ranks: sizes, requests, answers, and the gradients back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.recsys.bags import Batch
from pliant.recsys.errors import BAD, raise_everywhere
from pliant.recsys.exchange import Swap, Talk
from pliant.recsys.groups import Group
from pliant.recsys.holding import TableShards
from pliant.recsys.lookup import LocalLookup, Lookup, look_up
from pliant.recsys.requests import Request
from pliant.recsys.vectors import empty_wire, from_wire, to_wire

__all__ = ["Chosen", "Early", "Returning", "Turn", "ask"]


Chosen = list[list[Tensor | None]]
"""By group and rank, which of the vectors that one asks of the other; None: all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Early:
    """Answers that have come before their turn, and which are still to come, and to be sent.

    Attributes:
        vectors: Of each group, float32 (sum of num_vectors, dim), by owner; filled as far as answers have come.
        to_send, to_come: Of each group and rank, which answers are not sent yet, int64 (num,); None: none of them is.

    """

    vectors: list[Tensor]
    to_send: Chosen
    to_come: Chosen

    @classmethod
    def nothing(cls, turn: "Turn") -> "Early":
        """Return that no answer has come."""
        held = turn.held
        nobody: Chosen = [[None for _ in its] for its in turn.asked]
        vectors = [
            torch.empty(sum(look.num_vectors), shard.group.dim, device=held.device)
            for shard, look in zip(held.shards, turn.lookups, strict=True)
        ]
        return cls(vectors=vectors, to_send=nobody, to_come=nobody)


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """Requests that have been exchanged."""

    held: TableShards
    batch: Batch
    lookups: list[Lookup]
    here: list[LocalLookup]
    asked: list[list[Request]]
    """By group and rank: what ranks want of this one."""
    early: "Early | None" = None

    def counts(self) -> Tensor:
        """Return numbers of ids, of vectors asked of owners, and of what was found in replicas, int64 (3,)."""
        vectors = sum(sum(look.num_vectors) for look in self.lookups)
        return torch.tensor([len(self.batch.ids), vectors, sum(look.num_hot for look in (*self.lookups, *self.here))])

    def answers(self, talk: Talk) -> list[Tensor]:
        """Return what the bags of each group pool to, float32 (num_bags, dim); then those of local tables.

        Each owner sends a vector for each id or bag that it was asked for, unless it has done so early.
        """
        rank = talk.comm.rank
        early = self.early or Early.nothing(self)
        for shard, look, asked, vectors in zip(self.held.shards, self.lookups, self.asked, early.vectors, strict=True):
            vectors.split(look.num_vectors)[rank].copy_(shard.answer(asked[rank]))
        arriving = self.send(talk, "answers", early.vectors, early.to_send, early.to_come)
        local = [lookup.pooled() for lookup in self.here]
        arriving()
        return [look.pooled(v) for look, v in zip(self.lookups, early.vectors, strict=True)] + local

    def send(
        self, talk: Talk, phase: str, vectors: Sequence[Tensor], to_send: Chosen, to_come: Chosen
    ) -> Callable[[], None]:
        """Post the chosen answers to all ranks; what is returned waits for those of the others, to fill `vectors`."""
        n, rank = talk.comm.size, talk.comm.rank
        sends: list[list[Tensor]] = [[] for _ in range(n)]
        came: list[list[Tensor]] = [[] for _ in range(n)]
        fill: list[Callable[[], None]] = []
        for g, (shard, look, asked) in enumerate(zip(self.held.shards, self.lookups, self.asked, strict=True)):
            bits = shard.group.bits
            for peer, part in enumerate(vectors[g].split(look.num_vectors)):
                if peer == rank:
                    continue
                request, index = asked[peer].chosen(to_send[g][peer]), to_come[g][peer]
                sends[peer] += to_wire(shard.answer(request), bits)
                out = part if index is None else part.new_empty(len(index), part.shape[1])
                wire = [out] if bits == 32 else empty_wire(len(out), out.shape[1], bits, out.device)
                came[peer] += wire
                fill.append(lambda wire=wire, bits=bits, out=out: from_wire(wire, bits, out))
                if index is not None:
                    fill.append(lambda part=part, index=index, out=out: _place(part, index, out))
        swap = talk.swap(phase, sends, came)

        def arrive() -> None:
            swap.wait()
            for one in fill:
                one()

        return arrive

    def back(self, talk: Talk, gradients: Sequence[Tensor], generator: torch.Generator) -> "Returning":
        """Send the gradients of vectors to their owners; those of replicas stay here. `gradients` as of `answers`."""
        n, rank = talk.comm.size, talk.comm.rank
        sends: list[list[Tensor]] = [[] for _ in range(n)]
        came: list[list[Tensor]] = [[] for _ in range(n)]
        take: list[Callable[[], None]] = []
        for shard, lookup, asked, gradient in zip(
            self.held.shards, self.lookups, self.asked, gradients[: len(self.lookups)], strict=True
        ):
            dim, bits = shard.group.dim, shard.group.bits
            parts = lookup.gradients(gradient.contiguous()).split(lookup.num_vectors)
            for peer, part in enumerate(parts):
                if peer == rank:
                    take.append(lambda shard=shard, request=asked[rank], part=part: shard.take(request, part))
                    continue
                sends[peer] += to_wire(part, bits, generator)
                request = asked[peer]
                num = request.sizes[-1]
                wire = empty_wire(num, dim, bits, self.held.device)
                came[peer] += wire
                take.append(
                    lambda shard=shard, request=request, wire=wire: shard.take(request, _decoded(wire, shard.group))
                )
        for lookup, gradient in zip(self.here, gradients[len(self.lookups) :], strict=True):
            lookup.keep_gradients(gradient.contiguous())
        return Returning(swap=talk.swap("gradients", sends, came), take=take)


@dataclass(frozen=True, kw_only=True, eq=False)
class Returning:
    """Gradients on their way to their owners."""

    swap: Swap
    take: list[Callable[[], None]]

    def land(self) -> None:
        """Wait for them, and hand them to the shards in the order of ranks, this one's at its place."""
        self.swap.wait()
        for one in self.take:
            one()


def _place(into: Tensor, index: Tensor, vectors: Tensor) -> None:
    into[index] = vectors


def _decoded(wire: list[Tensor], group: Group) -> Tensor:
    if group.bits == 32:
        return wire[0]
    out = torch.empty(len(wire[0]), group.dim, device=wire[0].device)
    from_wire(wire, group.bits, out)
    return out


def ask(held: TableShards, read: Callable[[], Batch], talk: Talk) -> Turn:
    """Tell each owner what this rank wants of it, and hear what the others want.

    Two exchanges: sizes, then slots, lengths of bags and weights. If some rank's inputs are bad, its error is raised
    on all ranks after the first.
    """
    error = batch = None
    lookups: list[Lookup] = []
    try:
        batch = read()
        lookups = [look_up(group, batch, held.replicas.get(group.dim)) for group in held.groups]
    except Exception as caught:  # noqa: BLE001  whatever it is, the other ranks wait for word of it
        error = caught
    n, rank = talk.comm.size, talk.comm.rank
    sizes = _exchange_sizes(held, lookups, talk, bad=error is not None)
    bad = [peer for peer in range(n) if any(size == BAD for its in sizes[peer] for size in its)]
    if error is not None and (n == 1 or not held.groups):
        raise error
    if bad or error is not None or batch is None:
        raise_everywhere(talk.comm, error, bad, held.device)
        raise RuntimeError("the error of a rank was lost.")
    asked = [
        [
            lookup.requests[rank]
            if peer == rank
            else Request.empty(sizes[peer][g], held.device, weighted=held.groups[g].weighted)
            for peer in range(n)
        ]
        for g, lookup in enumerate(lookups)
    ]
    talk.swap(
        "requests",
        [[part for lookup in lookups for part in lookup.requests[peer].parts] for peer in range(n)],
        [[part for its in asked for part in its[peer].parts] for peer in range(n)],
    ).wait()
    here = [LocalLookup(local, batch, held.replicas[local.dim]) for local in held.locals]
    return Turn(held=held, batch=batch, lookups=lookups, here=here, asked=asked)


def _exchange_sizes(held: TableShards, lookups: list[Lookup], talk: Talk, *, bad: bool) -> list[list[list[int]]]:
    """Return for each rank and group how many ids, and bags, it wants of this rank."""
    n, rank = talk.comm.size, talk.comm.rank
    widths = [2 if group.pools else 1 for group in held.groups]
    sends: list[list[Tensor]] = []
    for peer in range(n):
        sizes = [BAD] * sum(widths) if bad else [size for look in lookups for size in look.requests[peer].sizes]
        sends.append([torch.tensor(sizes, dtype=torch.int64, device=held.device)])
    came = [torch.zeros(sum(widths), dtype=torch.int64, device=held.device) for _ in range(n)]
    talk.swap("sizes", sends, [[own] for own in came]).wait()
    found: list[list[list[int]]] = []
    for peer in range(n):
        numbers = (sends[rank][0] if peer == rank else came[peer]).tolist()
        if any(number < BAD for number in numbers):
            raise ValueError(f"rank {peer} sent sizes {numbers} to rank {rank}; it has other tables or another plan.")
        its: list[list[int]] = []
        for width in widths:
            its.append(numbers[:width])
            numbers = numbers[width:]
        found.append(its)
    return found
