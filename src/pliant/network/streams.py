"""Measurement of the link between two ranks, over the transport that training uses.

Nothing is known about the link beforehand, so the receiver asks for little, and then for four times as much, or for
what the rest of its time allows: a slow link carries little, and a fast one is filled.
"""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import torch

from pliant.comm import Comm
from pliant.comm.small_gather import gather_small
from pliant.network.inference import Matrix, Pair

__all__ = [
    "MAX_STREAM_BYTES",
    "half_trips_s",
    "loopback_bytes_per_s",
    "measure_throughput",
    "message_s",
    "round_trip_s",
    "steady_throughput",
    "waited_message_s",
]

MAX_STREAM_BYTES = 64_000_000
"""The most that is asked for at once."""

_CHUNKS, _OF_EACH = 32, 4
"""Least parts of what is asked for, and least parts for each connection, which arrive together: each is a point in
time. All are posted before, as the whole of a large message is."""
_FIRST_BYTES = 64_000
_GROWTH = 4
_LEAST_ANSWER_S = 0.1
"""An answer that came in less may have been a token bucket's free burst, and tells nothing, whatever time is left."""
_AIM_S = 0.15
"""What an answer is made for where less time is left: one that came in a little less than 0.1 s would need another."""
_SETTLING = 0.4
"""Part of an answer that is not counted: slow start, and what shapers' full buckets let through for nothing."""
_AT_ONCE = 0.25
"""Share of the mean time between chunks: a chunk that follows sooner had arrived before, and waited to be read."""
_FEW = 3
_SWAPS, _FAR_S = 16, 2e-3
_TRIPS = (3, 20)
_MORE, _LAST = 0, 1


def round_trip_s(comm: Comm, peer: int, limit_s: float) -> float:
    """Return the shortest of 3 to 20 round trips of 8 bytes within some limit_s; both ranks call it.

    The lower rank asks; the other answers, and returns 0. The shortest, since the others had to wait for a core.
    """
    ping, pong = torch.zeros(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    if comm.rank > peer:
        while int(ping[0]) == _MORE:
            comm.exchange([], [(peer, ping)]).wait()
            comm.exchange([(peer, pong)], []).wait()
        return 0.0
    trips_s: list[float] = []
    start_s = time.perf_counter()
    while int(ping[0]) == _MORE:
        enough = len(trips_s) >= _TRIPS[0] and time.perf_counter() - start_s > limit_s
        ping[0] = _LAST if enough or len(trips_s) == _TRIPS[1] else _MORE
        sent_s = time.perf_counter()
        comm.exchange([(peer, ping)], [(peer, pong)]).wait()
        trips_s.append(time.perf_counter() - sent_s)
    return min(trips_s[1:])  # the first may have had to connect


def half_trips_s(comm: Comm, rounds: Sequence[Sequence[Pair]], limit_s: float, each_s: float | None = None) -> Matrix:
    """Return half of each pair's shortest round trip, less what a message costs. Collective.

    Args:
        comm: Ranks.
        rounds: Rounds of disjoint pairs.
        limit_s: Time for each round, but for at least three round trips.
        each_s: What a message costs; measured if None.

    Returns:
        The same on all ranks, symmetric (ranks, ranks); NaN where not measured.

    """
    each_s = message_s(comm) if each_s is None else each_s
    mine = torch.full((comm.size + 1,), torch.nan, dtype=torch.float64)
    mine[-1] = each_s
    for pairs in rounds:
        for a, b in pairs:
            if comm.rank in (a, b) and (trip_s := round_trip_s(comm, a + b - comm.rank, limit_s)):
                mine[b] = trip_s
    table = gather_small(comm, mine).numpy()  # (ranks, ranks + 1)
    trips_s, cost_s = table[:, :-1], float(np.median(table[:, -1]))
    both_s = np.where(np.isfinite(trips_s), trips_s, trips_s.T)
    return np.maximum(both_s / 2 - cost_s, 0.0)


def message_s(comm: Comm, turns: int = 3) -> float:
    """Return the cost of one more small message for each rank, from the time of many over that of few. Collective.

    All go round a ring, posted at once, so that neither delays nor rates have a part in it; the median of `turns`.
    """
    if comm.size == 1:
        return 0.0
    following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    few, many = 16, 144
    tokens = torch.zeros(2 * many, 8, dtype=torch.uint8)  # (messages, bytes)
    spent_s: list[float] = []
    for _ in range(turns):
        took_s: list[float] = []
        for count in (few, many):
            comm.barrier()
            start_s = time.perf_counter()
            sends = [(following, tokens[k]) for k in range(count)]
            comm.exchange(sends, [(previous, tokens[many + k]) for k in range(count)]).wait()
            took_s.append(time.perf_counter() - start_s)
        spent_s.append((took_s[1] - took_s[0]) / (many - few))
    return max(0.0, statistics.median(spent_s))


def waited_message_s(comm: Comm, limit_s: float, turns: int = 3) -> float:
    """Return the cost of a message in rounds in which every rank waits for its own, as in exchanges. Collective.

    Ranks 2k and 2k + 1 swap 8 bytes, all pairs at once: a delay and two messages. The delay is half of the shortest
    round trip of the same pair, less the cost of one of many messages: so the probe has it. It is never below that
    cost. The median of `turns` of 16 rounds. A last rank without a peer has the cost of one of many; so have all ranks
    where a round trip takes more than 2 ms, since what is added to it cannot be told from its own changes.
    """
    least_s, peer = message_s(comm, turns), comm.rank ^ 1
    ours, theirs = torch.zeros(2, dtype=torch.float64)[:, None]
    if alone := peer >= comm.size:
        trip_s = 0.0
    elif trip_s := round_trip_s(comm, peer, limit_s):  # the lower rank's
        ours.fill_(trip_s)
    if float(gather_small(comm, torch.tensor([trip_s], dtype=torch.float64)).max()) > _FAR_S:
        return least_s
    spent_s: list[float] = []
    for _ in range(turns):
        comm.barrier()
        start_s = time.perf_counter()
        for _ in range(0 if alone else _SWAPS):
            comm.exchange([(peer, ours)], [(peer, theirs)]).wait()
        spent_s.append((time.perf_counter() - start_s) / _SWAPS)
    delay_s = max(float(ours), float(theirs)) / 2 - least_s
    return least_s if alone else max(least_s, (statistics.median(spent_s) - delay_s) / 2)


def loopback_bytes_per_s(comm: Comm, places: Sequence[Sequence[int]], num_bytes: int) -> float:
    """Return the bytes per second that all ranks of this rank's host together hand round a ring of theirs. Collective.

    The median of three rounds of `num_bytes` each; 0 where a host has one rank.
    """
    own = next(ranks for ranks in places if comm.rank in ranks)
    if max(map(len, places)) == 1:
        return 0.0
    if len(own) == 1:
        for _ in range(3):
            comm.barrier()
        return 0.0
    at = own.index(comm.rank)
    following, previous = own[(at + 1) % len(own)], own[at - 1]
    sent, received = torch.zeros(2, num_bytes, dtype=torch.uint8)
    spent_s: list[float] = []
    for _ in range(3):
        comm.barrier()
        start_s = time.perf_counter()
        comm.exchange([(following, sent)], [(previous, received)]).wait()
        spent_s.append(time.perf_counter() - start_s)
    return len(own) * num_bytes / max(statistics.median(spent_s), 1e-9)


def measure_throughput(
    comm: Comm, targets: Sequence[int], sources: Sequence[int], duration_s: float
) -> dict[int, float]:
    """Send to all targets and receive from all sources at once; return the bytes per second that came from each.

    Each source is asked for 64 KB and then, as long as there is time, for four times as much. It is never more than 64
    MB, nor more than fits into the rest of duration_s at the rate so far. An answer that counts came in 0.1 s or more,
    or was as large as it may be; so a stream may take some 0.1 s longer, and longer yet where the rate was not what it
    seemed. The first answer never counts: one lost packet may hold it up for longer than the whole stream.

    A thread for each stream: a slow one holds up no other. Questions and answers have tags of their own, since two
    ranks may send to each other; so all ranks call it.
    """
    ways = _Ways(comm, questions=comm.new_tag(), answers=comm.new_tag())
    with ThreadPoolExecutor(max(1, len(targets) + len(sources)), thread_name_prefix="pliant-probe") as pool:
        sending = [pool.submit(_serve, ways, peer) for peer in targets]
        receiving = {peer: pool.submit(_fetch, ways, peer, duration_s) for peer in sources}
        rates = {peer: rate.result() for peer, rate in receiving.items()}
        for sent in sending:
            sent.result()
    return rates


def steady_throughput(arrivals: Sequence[tuple[float, int]]) -> float:
    """Return bytes per second of a settled stream: the median slope of distant points (Theil-Sen).

    Distant is half of what is counted: the timing thread may have to wait for a core, and then reads several chunks. Of
    these only the last one's time counts, or a wait at the beginning would make the others look fast.

    Args:
        arrivals: When each chunk was complete, in s, and the bytes received by then; at least two.

    """
    at_once_s = _AT_ONCE * (arrivals[-1][0] - arrivals[0][0]) / (len(arrivals) - 1)
    seen = [a for a, following in pairwise(arrivals) if following[0] - a[0] >= at_once_s] + [arrivals[-1]]
    first_s, last_s = seen[0][0], seen[-1][0]
    settled = [a for a in seen if a[0] >= first_s + _SETTLING * (last_s - first_s)]
    if len(settled) < _FEW:  # a few chunks came late, and all others at once
        settled = list(arrivals)
    far_s = max((settled[-1][0] - settled[0][0]) / 2, 1e-9)
    pairs = combinations(settled, 2)
    slopes = [(n - m) / (b - a) for (a, m), (b, n) in pairs if b - a >= far_s]
    return statistics.median(slopes) if slopes else (settled[-1][1] - settled[0][1]) / far_s


@dataclass(frozen=True)
class _Ways:
    """Comm of streams, with the tags of what is asked and of what is answered."""

    comm: Comm
    questions: int
    answers: int

    @property
    def num_chunks(self) -> int:
        return max(_CHUNKS, _OF_EACH * self.comm.connections)


def _serve(ways: _Ways, peer: int) -> None:
    """Send what the peer asks for, until it asks for nothing."""
    question = torch.zeros(1, dtype=torch.int64)  # bytes in a chunk
    while True:
        ways.comm.exchange([], [(peer, question)], tag=ways.questions).wait()
        if not int(question):
            return
        chunk = torch.zeros(int(question), dtype=torch.uint8)
        for sent in [ways.comm.exchange([(peer, chunk)], [], turn=k, tag=ways.answers) for k in range(ways.num_chunks)]:
            sent.wait()


def _fetch(ways: _Ways, peer: int, duration_s: float) -> float:
    """Ask the peer for more and more; return the rate of the last answer."""
    num, start_s = ways.num_chunks, time.perf_counter()
    size, largest, rate, answers = _FIRST_BYTES // num, MAX_STREAM_BYTES // num, 0.0, 0
    while size:
        asked_s, answers = time.perf_counter(), answers + 1
        arrivals = _answer(ways, peer, size)
        rate, now_s = steady_throughput(arrivals), time.perf_counter()
        left_s = duration_s - (now_s - start_s)
        told = arrivals[-1][0] - arrivals[0][0] >= _LEAST_ANSWER_S and left_s <= now_s - asked_s
        if answers > 1 and (told or size == largest or -left_s > 2 * duration_s):
            break
        size = max(size, min(_GROWTH * size, int(rate * max(left_s, _AIM_S) / num), largest))
    ways.comm.exchange([(peer, torch.zeros(1, dtype=torch.int64))], [], tag=ways.questions).wait()
    return rate


def _answer(ways: _Ways, peer: int, size: int) -> list[tuple[float, int]]:
    """Ask for chunks of this size; return when each was complete, and the bytes by then."""
    buffer = torch.empty(size, dtype=torch.uint8)  # one for all: nobody looks at what has come
    posted = [ways.comm.exchange([], [(peer, buffer)], turn=k, tag=ways.answers) for k in range(ways.num_chunks)]
    ways.comm.exchange([(peer, torch.tensor([size]))], [], tag=ways.questions).wait()
    arrivals: list[tuple[float, int]] = []
    for work in posted:
        work.wait()
        arrivals.append((time.perf_counter(), size * (len(arrivals) + 1)))
    return arrivals
