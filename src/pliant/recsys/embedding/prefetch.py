"""The next batch, asked for while this one is in work: beside it, in a thread and a group of ranks of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from pliant.collectives.bit_masks import pack_bits, unpack_bits
from pliant.layouts.embedding_messages import mask_bytes
from pliant.recsys.embedding.bags import BagBatch, Inputs
from pliant.recsys.embedding.channel import PairwiseChannel
from pliant.recsys.embedding.local_tables import LocalTables
from pliant.recsys.embedding.round_trip import Chosen, EarlyAnswers, LookupRoundTrip, exchange_requests

__all__ = ["Prefetcher", "answered_early"]


class Prefetcher:
    """At most one batch that has been asked for before its forward pass."""

    def __init__(self, local: LocalTables, make_channel: Callable[[], PairwiseChannel]) -> None:
        self._local = local
        self._make_channel = make_channel
        self.channels: list[PairwiseChannel] = []
        """Made when it is first needed, on all ranks."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding-ahead")
        self._next: tuple[Inputs, Future[LookupRoundTrip]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a batch has been asked for."""
        return self._next is not None

    def begin(self, inputs: Inputs, read: Callable[[], BagBatch], open_trips: Sequence[LookupRoundTrip]) -> None:
        """Ask for a batch; `open_trips` are those whose gradients may still change rows before it is answered."""
        if self._next is not None:
            raise ValueError("prefetch() was called twice; call forward() with the first batch in between.")
        trips = list(open_trips)
        channel = self.channels[0] if self.channels else self._make_channel()
        self.channels = [channel]

        def run() -> LookupRoundTrip:
            with torch.no_grad():
                trip = exchange_requests(self._local, read, channel)
                return replace(trip, early=answered_early(trip, trips, channel))

        self._next = inputs, self._thread.submit(run)

    def take(self, inputs: Inputs) -> LookupRoundTrip:
        """Wait for the batch that was asked for, and raise what went wrong."""
        if self._next is None:
            raise ValueError("nothing was prefetched.")
        given, future = self._next
        if given is not inputs:
            raise ValueError("forward() was given another batch than prefetch() before; give it the same object.")
        self._next = None
        return future.result()

    def drop(self) -> None:
        """Wait for the batch, and forget it."""
        if self._next is not None:
            _, future = self._next
            self._next = None
            future.result()

    def close(self) -> None:
        """End the thread when it is done with what it does."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        for channel in self.channels:
            channel.comm.close()


def answered_early(
    trip: LookupRoundTrip, open_trips: Sequence[LookupRoundTrip], channel: PairwiseChannel
) -> EarlyAnswers:
    """Send now the rows that no rank has looked up in a round trip which is still open: no gradient can change them.

    Where vectors move only. The owner tells which they are, one bit for each that it was asked for, in one message;
    the rows follow in another. The rest follows in the forward pass.
    """
    local, n, rank = trip.local, channel.comm.size, channel.comm.rank
    none = EarlyAnswers.nothing(trip)
    sends: list[list[Tensor]] = [[] for _ in range(n)]
    came: list[list[Tensor]] = [[] for _ in range(n)]
    untouched: list[list[Tensor | None]] = []  # (vectors asked of this rank,), by group and rank
    for g, (group, look) in enumerate(zip(local.groups, trip.lookups, strict=True)):
        touched = _touched(g, open_trips, local)
        masks = [None if group.pools else ~torch.isin(request.slots, touched) for request in trip.asked[g]]
        untouched.append(masks)
        for peer, mask in enumerate(masks):
            if mask is not None and peer != rank:
                sends[peer].append(pack_bits(mask, mask_bytes(len(mask))))
                came[peer].append(
                    torch.empty(mask_bytes(look.num_vectors[peer]), dtype=torch.uint8, device=local.device)
                )
    channel.exchange("masks", sends, came).wait()
    coming: list[list[Tensor | None]] = []  # (vectors asked by this rank,), by group and rank
    for group, look in zip(local.groups, trip.lookups, strict=True):
        masks = [
            None if group.pools or peer == rank else unpack_bits(came[peer].pop(0), num)
            for peer, num in enumerate(look.num_vectors)
        ]
        coming.append(masks)
    nothing = torch.empty(0, dtype=torch.int64, device=local.device)
    now = [_chosen(masks, True, nothing) for masks in (untouched, coming)]
    later = [_chosen(masks, False, nothing) for masks in (untouched, coming)]
    trip.send(channel, "early", none.vectors, *now)()
    return EarlyAnswers(vectors=none.vectors, to_send=later[0], to_come=later[1])


def _chosen(masks: list[list[Tensor | None]], which: bool, nothing: Tensor) -> Chosen:
    """Return the places where masks are so; without a mask, all are False."""
    return [
        [(mask == which).nonzero().view(-1) if mask is not None else nothing if which else None for mask in its]
        for its in masks
    ]


def _touched(g: int, trips: Sequence[LookupRoundTrip], local: LocalTables) -> Tensor:
    slots = [request.slots for trip in trips for request in trip.asked[g]]
    return torch.cat(slots) if slots else torch.empty(0, dtype=torch.int32, device=local.device)
