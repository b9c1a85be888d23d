"""Measurement of a link over some connections of a comm: all of them carry data until the time is over."""

import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from pliant.comm import Comm, Work
from pliant.comm.striping import SMALL_BYTES
from pliant.spec.slices import SLICE_BYTES

__all__ = ["End", "measure_connections", "settled_throughput"]

_LEAST_CHUNKS, _LEAST_CHUNK_BYTES = 32, SMALL_BYTES + 64
"""Smaller chunks would all go over one connection."""
_GROWTH = 8
_ANSWER_S, _OF_DURATION = 0.4, 1 / 8
"""Time of an answer, and its least share of the stream's: long beside the waits of a thread for a core, which would
otherwise keep answers small, and so slow; and some round trips, since the next is asked for when half has come."""
_MOST_BYTES = 64_000_000
_SETTLING = 0.5
"""Part of the time that is not counted: slow start, and what shapers' full buckets let through for nothing."""

Arrivals = Sequence[tuple[float, int]]
"""Times at which data was complete, in s, and bytes received by then, from (start, 0) on."""


class End(NamedTuple):
    """A comm, and the rank of the peer in it."""

    comm: Comm
    peer: int


def measure_connections(asks: End, answers: End, duration_s: float, connections: int) -> float:
    """Send to a peer and receive from it over some connections of a comm; return the bytes per second that came.

    Both ranks call it. The receiver asks again and again, for data of an eighth of duration_s or of 0.4 s, until
    duration_s is over; so it takes that much longer, or as long as half a megabyte takes. Data goes in chunks of at
    most 256 KB, each over the connection after that of the one before, as large messages of a training do.

    Args:
        asks: Comm that carries questions, and the peer's rank in it.
        answers: Another comm, which carries data, and the peer's rank in it.
        duration_s: See above.
        connections: So many of the first connections of the comm that carries data.

    """
    with ThreadPoolExecutor(2, thread_name_prefix="pliant-stream") as pool:
        sending = pool.submit(_serve, asks, answers, connections)
        arrivals = pool.submit(_receive, asks, answers, duration_s, connections).result()
        sending.result()
    return settled_throughput(arrivals)


def settled_throughput(arrivals: Arrivals) -> float:
    """Return the bytes per second of a stream in the second half of its time.

    Between two arrivals bytes are taken to have come evenly.
    """
    first_s, last_s = arrivals[0][0], arrivals[-1][0]
    from_s = first_s + _SETTLING * (last_s - first_s)
    return (arrivals[-1][1] - _bytes_by(arrivals, from_s)) / max(last_s - from_s, 1e-6)


def _bytes_by(stream: Arrivals, at_s: float) -> float:
    k = bisect_right([time_s for time_s, _ in stream], at_s)
    if k == len(stream):
        return float(stream[-1][1])
    (before_s, before), (after_s, after) = stream[k - 1], stream[k]
    return before + (after - before) * (at_s - before_s) / max(after_s - before_s, 1e-9)


def _serve(asks: End, answers: End, connections: int) -> None:
    """Send what the peer asks for, until it asks for nothing."""
    question = torch.zeros(2, dtype=torch.int64)
    while True:
        asks.comm.exchange([], [(asks.peer, question)]).wait()
        num_chunks, size = question.tolist()
        if not num_chunks:
            return
        chunk = torch.zeros(size, dtype=torch.uint8)
        posted = [answers.comm.exchange([(answers.peer, chunk)], [], turn=k % connections) for k in range(num_chunks)]
        for sent in posted:
            sent.wait()


def _receive(asks: End, answers: End, duration_s: float, connections: int) -> Arrivals:
    """Ask the peer again and again, each time before the answer before has come whole, and note what has come."""
    start_s = began_s = time.perf_counter()
    arrivals = [(start_s, 0)]
    answer_s = max(_ANSWER_S, _OF_DURATION * duration_s)
    asked = _Answer(_LEAST_CHUNKS, _LEAST_CHUNK_BYTES)
    current = _ask(asks, answers, asked, connections)
    while current:
        following, next_asked = list[Work](), asked
        for k, work in enumerate(current, 1):
            work.wait()
            now_s = time.perf_counter()
            arrivals.append((now_s, arrivals[-1][1] + asked.chunk_bytes))
            if k == len(current) // 2 and now_s < start_s + duration_s:
                fitting = int(k * asked.chunk_bytes / max(now_s - began_s, 1e-6) * answer_s)
                next_asked = asked.grown(fitting)
                following = _ask(asks, answers, next_asked, connections)
        began_s, asked, current = arrivals[-1][0], next_asked, following
    _question(asks, 0, 0).wait()
    return arrivals


class _Answer(NamedTuple):
    """Chunks of data that the receiver asks for at once."""

    num_chunks: int
    chunk_bytes: int

    def grown(self, fitting: int) -> "_Answer":
        """Return one of as many bytes as fit, but at most eight times as many as this one has, and no fewer."""
        now = self.num_chunks * self.chunk_bytes
        wanted = max(now, min(_GROWTH * now, fitting, _MOST_BYTES))
        num = max(_LEAST_CHUNKS, -(-wanted // SLICE_BYTES))
        return _Answer(num, wanted // num)


def _ask(asks: End, answers: End, asked: _Answer, connections: int) -> list[Work]:
    """Ask for an answer; return what completes as each chunk comes."""
    buffer = torch.empty(asked.chunk_bytes, dtype=torch.uint8)  # one for all: nobody looks at what has come
    posted = [
        answers.comm.exchange([], [(answers.peer, buffer)], turn=k % connections) for k in range(asked.num_chunks)
    ]
    _question(asks, *asked).wait()
    return posted


def _question(asks: End, num_chunks: int, chunk_bytes: int) -> Work:
    return asks.comm.exchange([(asks.peer, torch.tensor([num_chunks, chunk_bytes]))], [])
