"""Measurement of a link over the connections of a comm: all of them carry data until the time is over."""

import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from pliant.comm import Comm, Work
from pliant.comm.striping import SMALL_BYTES

__all__ = ["End", "measure_connections", "settled_throughput"]

_CHUNKS = 32
_LEAST_CHUNK_BYTES = SMALL_BYTES + 64
"""Smaller ones would all go over one connection."""
_GROWTH = 8
_ANSWER_S = 1.0
"""Long beside the waits of a thread for a core, which would otherwise keep answers small, and so slow."""
_MOST_BYTES = 64_000_000
_SETTLING = 0.5
"""Part of the time that is not counted: slow start, and what shapers' full buckets let through for nothing."""

Arrivals = Sequence[tuple[float, int]]
"""Times at which data was complete, in s, and bytes received by then, from (start, 0) on."""


class End(NamedTuple):
    """A comm, and the rank of the peer in it."""

    comm: Comm
    peer: int


def measure_connections(asks: End, answers: End, duration_s: float) -> float:
    """Send to a peer and receive from it, over all connections of a comm; return the bytes per second that came.

    Both ranks call it. The receiver asks again and again, for up to a second's data, until duration_s is over; so it
    takes up to a second longer, or as long as half a megabyte takes.

    Args:
        asks: Comm that carries questions, and the peer's rank in it.
        answers: Another comm, which carries data, and the peer's rank in it.
        duration_s: See above.

    """
    with ThreadPoolExecutor(2, thread_name_prefix="pliant-stream") as pool:
        sending = pool.submit(_serve, asks, answers)
        arrivals = pool.submit(_receive, asks, answers, duration_s).result()
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


def _serve(asks: End, answers: End) -> None:
    """Send what the peer asks for, until it asks for nothing."""
    question = torch.zeros(1, dtype=torch.int64)  # bytes in a chunk
    while True:
        asks.comm.exchange([], [(asks.peer, question)]).wait()
        if not int(question):
            return
        chunk = torch.zeros(int(question), dtype=torch.uint8)
        for sent in [answers.comm.exchange([(answers.peer, chunk)], [], turn=k) for k in range(_CHUNKS)]:
            sent.wait()


def _receive(asks: End, answers: End, duration_s: float) -> Arrivals:
    """Ask the peer again and again, each time before the answer before has come whole, and note what has come."""
    start_s = began_s = time.perf_counter()
    arrivals = [(start_s, 0)]
    size = _LEAST_CHUNK_BYTES
    current = _ask(asks, answers, size)
    while current:
        following: list[Work] = []
        next_size = size
        for k, work in enumerate(current, 1):
            work.wait()
            now_s = time.perf_counter()
            arrivals.append((now_s, arrivals[-1][1] + size))
            if k == _CHUNKS // 2 and now_s < start_s + duration_s:
                fitting = int(k * size / max(now_s - began_s, 1e-6) * _ANSWER_S) // _CHUNKS
                next_size = max(size, min(_GROWTH * size, fitting, _MOST_BYTES // _CHUNKS))
                following = _ask(asks, answers, next_size)
        began_s, size, current = arrivals[-1][0], next_size, following
    _question(asks, 0).wait()
    return arrivals


def _ask(asks: End, answers: End, size: int) -> list[Work]:
    """Ask for chunks of so many bytes; return what completes as each of them comes."""
    buffer = torch.empty(size, dtype=torch.uint8)  # one for all: nobody looks at what has come
    posted = [answers.comm.exchange([], [(answers.peer, buffer)], turn=k) for k in range(_CHUNKS)]
    _question(asks, size).wait()
    return posted


def _question(asks: End, size: int) -> Work:
    return asks.comm.exchange([(asks.peer, torch.tensor([size]))], [])
