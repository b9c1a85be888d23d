"""One lookup of all tables on all ranks: sizes, requests, answers, and the gradients back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pliant.comm.base import Comm
from pliant.comm.text_broadcast import broadcast_text
from pliant.recsys.embedding.bags import BagBatch
from pliant.recsys.embedding.channel import PairwiseChannel, PendingTransfer
from pliant.recsys.embedding.groups import Group
from pliant.recsys.embedding.local_tables import LocalTables
from pliant.recsys.embedding.lookup import LocalLookup, Lookup, look_up
from pliant.recsys.embedding.shard import Request
from pliant.recsys.embedding.vectors import empty_wire, from_wire, to_wire

__all__ = ["Chosen", "EarlyAnswers", "GradientReturn", "LookupRoundTrip", "exchange_requests"]


_BAD = -1
"""A size that says: what this rank was given cannot be looked up; its error follows."""

_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (ValueError, IndexError, TypeError)}

Chosen = list[list[Tensor | None]]
"""By group and rank, which of the vectors that one asks of the other; None: all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EarlyAnswers:
    """Answers that have come before their forward pass, and which are still to come, and to be sent.

    Attributes:
        vectors: Of each group, float32 (sum of num_vectors, dim), by owner; filled as far as answers have come.
        to_send, to_come: Of each group and rank, which answers are not sent yet, int64 (num,); None: none of them is.

    """

    vectors: list[Tensor]
    to_send: Chosen
    to_come: Chosen

    @classmethod
    def nothing(cls, trip: "LookupRoundTrip") -> "EarlyAnswers":
        """Return that no answer has come."""
        local = trip.local
        nobody: Chosen = [[None for _ in its] for its in trip.asked]
        vectors = [
            torch.empty(sum(look.num_vectors), shard.group.dim, dtype=torch.float32, device=local.device)
            for shard, look in zip(local.shards, trip.lookups, strict=True)
        ]
        return cls(vectors=vectors, to_send=nobody, to_come=nobody)


@dataclass(frozen=True, kw_only=True, eq=False)
class LookupRoundTrip:
    """Requests that have been exchanged."""

    local: LocalTables
    batch: BagBatch
    lookups: list[Lookup]
    here: list[LocalLookup]
    asked: list[list[Request]]
    """By group and rank: what ranks want of this one."""
    hot_keys: list[Tensor]
    """Keys of each group's hot rows, of which places were found here."""
    early: "EarlyAnswers | None" = None

    def counts(self) -> Tensor:
        """Return numbers of ids, of vectors asked of owners, and of what was found in replicas, int64 (3,)."""
        vectors = sum(sum(look.num_vectors) for look in self.lookups)
        return torch.tensor([len(self.batch.ids), vectors, sum(look.num_hot for look in (*self.lookups, *self.here))])

    def answers(self, channel: PairwiseChannel) -> list[Tensor]:
        """Return what the bags of each group pool to, float32 (num_bags, dim); then those of local tables.

        Each owner sends a vector for each id or bag that it was asked for, unless it has done so early.
        """
        rank = channel.comm.rank
        early = self.early or EarlyAnswers.nothing(self)
        for shard, look, asked, vectors in zip(self.local.shards, self.lookups, self.asked, early.vectors, strict=True):
            vectors.split(look.num_vectors)[rank].copy_(shard.answer(asked[rank]))
        arriving = self.send(channel, "answers", early.vectors, early.to_send, early.to_come)
        local = [lookup.pooled() for lookup in self.here]
        arriving()
        return [look.pooled(v) for look, v in zip(self.lookups, early.vectors, strict=True)] + local

    def send(
        self, channel: PairwiseChannel, phase: str, vectors: Sequence[Tensor], to_send: Chosen, to_come: Chosen
    ) -> Callable[[], None]:
        """Post the chosen answers to all ranks; what is returned waits for those of the others, to fill `vectors`."""
        n, rank = channel.comm.size, channel.comm.rank
        sends: list[list[Tensor]] = [[] for _ in range(n)]
        came: list[list[Tensor]] = [[] for _ in range(n)]
        fill: list[Callable[[], None]] = []
        for g, (shard, look, asked) in enumerate(zip(self.local.shards, self.lookups, self.asked, strict=True)):
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
        exchange = channel.exchange(phase, sends, came)

        def arrive() -> None:
            exchange.wait()
            for one in fill:
                one()

        return arrive

    def back(
        self, channel: PairwiseChannel, gradients: Sequence[Tensor], generator: torch.Generator
    ) -> "GradientReturn":
        """Send the gradients of vectors to their owners; those of replicas stay here. `gradients` as of `answers`.

        Raises:
            ValueError: Other rows are hot now: places among the replicas are those of others. On all ranks alike.

        """
        if any(group.hot_keys is not keys for group, keys in zip(self.local.groups, self.hot_keys, strict=True)):
            raise ValueError(
                "backward() goes through a forward() from before set_hot() or load_state_dict(), which have moved hot "
                "rows; call them between step() and the next forward()."
            )
        n, rank = channel.comm.size, channel.comm.rank
        sends: list[list[Tensor]] = [[] for _ in range(n)]
        came: list[list[Tensor]] = [[] for _ in range(n)]
        take: list[Callable[[], None]] = []
        for shard, lookup, asked, gradient in zip(
            self.local.shards, self.lookups, self.asked, gradients[: len(self.lookups)], strict=True
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
                wire = empty_wire(num, dim, bits, self.local.device)
                came[peer] += wire
                take.append(
                    lambda shard=shard, request=request, wire=wire: shard.take(request, _decoded(wire, shard.group))
                )
        for lookup, gradient in zip(self.here, gradients[len(self.lookups) :], strict=True):
            lookup.keep_gradients(gradient.contiguous())
        return GradientReturn(exchange=channel.exchange("gradients", sends, came), take=take)


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientReturn:
    """Gradients on their way to their owners."""

    exchange: PendingTransfer
    take: list[Callable[[], None]]

    def land(self) -> None:
        """Wait for them, and hand them to the shards in the order of ranks, this one's at its place."""
        self.exchange.wait()
        for one in self.take:
            one()


def _place(into: Tensor, index: Tensor, vectors: Tensor) -> None:
    into[index] = vectors


def _decoded(wire: list[Tensor], group: Group) -> Tensor:
    if group.bits == 32:
        return wire[0]
    out = torch.empty(len(wire[0]), group.dim, dtype=torch.float32, device=wire[0].device)
    from_wire(wire, group.bits, out)
    return out


def exchange_requests(local: LocalTables, read: Callable[[], BagBatch], channel: PairwiseChannel) -> LookupRoundTrip:
    """Tell each owner what this rank wants of it, and hear what the others want.

    Two exchanges: sizes, then slots, lengths of bags and weights. If some rank's inputs are bad, its error is raised
    on all ranks after the first.
    """
    error = batch = None
    lookups: list[Lookup] = []
    try:
        batch = read()
        lookups = [look_up(group, batch, local.replicas.get(group.dim)) for group in local.groups]
    except Exception as caught:  # noqa: BLE001  whatever it is, the other ranks wait for word of it
        error = caught
    n, rank = channel.comm.size, channel.comm.rank
    sizes = _exchange_sizes(local, lookups, channel, bad=error is not None)
    bad = [peer for peer in range(n) if any(size == _BAD for its in sizes[peer] for size in its)]
    if error is not None and (n == 1 or not local.groups):
        raise error
    if bad or error is not None or batch is None:
        _raise_on_all_ranks(channel.comm, error, bad, local.device)
        raise RuntimeError("the error of a rank was lost.")
    asked = [
        [
            lookup.requests[rank]
            if peer == rank
            else Request.empty(sizes[peer][g], local.device, weighted=local.groups[g].weighted)
            for peer in range(n)
        ]
        for g, lookup in enumerate(lookups)
    ]
    channel.exchange(
        "requests",
        [[part for lookup in lookups for part in lookup.requests[peer].parts] for peer in range(n)],
        [[part for its in asked for part in its[peer].parts] for peer in range(n)],
    ).wait()
    here = [LocalLookup(group, batch, local.replicas[group.dim]) for group in local.replicated]
    hot_keys = [group.hot_keys for group in local.groups]
    return LookupRoundTrip(local=local, batch=batch, lookups=lookups, here=here, asked=asked, hot_keys=hot_keys)


def _exchange_sizes(
    local: LocalTables, lookups: list[Lookup], channel: PairwiseChannel, *, bad: bool
) -> list[list[list[int]]]:
    """Return for each rank and group how many ids, and bags, it wants of this rank."""
    n, rank = channel.comm.size, channel.comm.rank
    widths = [2 if group.pools else 1 for group in local.groups]
    sends: list[list[Tensor]] = []
    for peer in range(n):
        sizes = [_BAD] * sum(widths) if bad else [size for look in lookups for size in look.requests[peer].sizes]
        sends.append([torch.tensor(sizes, dtype=torch.int64, device=local.device)])
    came = [torch.zeros(sum(widths), dtype=torch.int64, device=local.device) for _ in range(n)]
    channel.exchange("sizes", sends, [[own] for own in came]).wait()
    found: list[list[list[int]]] = []
    for peer in range(n):
        numbers = (sends[rank][0] if peer == rank else came[peer]).tolist()
        if any(number < _BAD for number in numbers):
            raise ValueError(f"rank {peer} sent sizes {numbers} to rank {rank}; it has other tables or another plan.")
        its: list[list[int]] = []
        for width in widths:
            its.append(numbers[:width])
            numbers = numbers[width:]
        found.append(its)
    return found


def _raise_on_all_ranks(comm: Comm, error: Exception | None, bad: Sequence[int], device: torch.device) -> None:
    """Raise this rank's error, if it has one, otherwise that of the first of the ranks `bad`. Collective."""
    first = min(bad)
    kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "ValueError")
    kind, _, text = broadcast_text(f"{kind} {error}", comm, first, device=device).partition(" ")
    if error is not None:
        raise error
    raise _KINDS.get(kind, ValueError)(f"rank {first}: {text}")
