"""Time that TCP loses while its window opens: slow start, at first and after a pause.

A connection sends a window of bytes, and then waits for the first acknowledgement, a round trip after the window's
start. The first window is ten segments (RFC 6928), and each is twice the one before (RFC 5681, section 3.1), until a
window lasts as long as the round trip. After a pause Linux halves the window once for each retransmission time-out that
has passed, down to the first one (RFC 2861, section 3). With windows of W_k = 2^k W_0 bytes and a rate of w bytes/s a
message waits

    sum of (r - W_k / w) over all windows k that are used up before its last byte and last less than r,

which is the term of slow start in Cardwell, Savage and Anderson, "Modeling TCP latency", INFOCOM 2000, section 3.
"""

import numpy as np

from pliant.netmodel.messages import Floats, Ints, Messages, PointToPoint, Together

__all__ = [
    "INITIAL_WINDOW_BYTES",
    "LEAST_TIMEOUT_S",
    "SEGMENT_BYTES",
    "OpenedPaths",
    "halvings",
    "in_turn_s",
    "retransmission_timeout_s",
    "slow_start_s",
]

SEGMENT_BYTES = 1448
"""Payload of a segment: 1500 bytes less headers of IP and TCP, and TCP's time stamps."""
INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES
_MOST_RANKS = 1_048_583
"""A prime above the number of ranks that a topology may have: numpy's hash of a power of two is slow."""
LEAST_TIMEOUT_S = 0.2
"""Part of Linux' retransmission time-out beside the round trip (TCP_RTO_MIN), which varies little."""


def retransmission_timeout_s(trip_s: Floats | float) -> Floats:
    """Return the pause after which a window is halved, in seconds: the round trip and 200 ms."""
    return np.asarray(trip_s) + LEAST_TIMEOUT_S


def halvings(pause_s: Floats | float, trip_s: Floats | float) -> Floats:
    """Return how often Linux halves a window for a pause: once for each time-out beyond the first."""
    return np.maximum(np.ceil(pause_s / retransmission_timeout_s(trip_s)) - 1, 0.0)


def slow_start_s(
    num_bytes: Floats | float,
    bytes_per_s: Floats | float,
    trip_s: Floats | float,
    *,
    connections: Floats | float = 1.0,
    pause_s: Floats | float = np.inf,
    initial_bytes: float = INITIAL_WINDOW_BYTES,
    window_bytes: float = np.inf,
) -> Floats:
    """Return the seconds that messages take beyond bytes / rate + delay. All arguments are broadcast.

    It is 0 where `bytes_per_s * trip_s` is at most the first windows of all connections. The message before is taken
    to have had as many bytes, so that its windows are those that a pause halves.

    Args:
        num_bytes: Payload of a message, over all its connections.
        bytes_per_s: Rate of payload on the path; infinite if nothing limits it.
        trip_s: Round trip of the path.
        connections: Connections that share the message evenly, each with a window of its own.
        pause_s: Time since the path was last used: 0 if it is in use, infinite if it never was.
        initial_bytes: First window of a connection; 1e30 for no slow start.
        window_bytes: Largest window of a connection, which the socket's buffers set.

    """
    size, rate, trip_s = (np.asarray(x, dtype=np.float64) for x in (num_bytes, bytes_per_s, trip_s))
    least = np.minimum(initial_bytes, window_bytes) * np.maximum(connections, 1.0)
    most = np.maximum(window_bytes * np.maximum(connections, 1.0), least)
    with np.errstate(invalid="ignore"):
        filling = np.where(trip_s > 0, rate * trip_s, 0.0)  # bytes of a window that lasts a round trip
    first = _after_pause(np.minimum(size, filling), least, most, pause_s, trip_s)
    doublings = _doublings(np.minimum(filling, most) / first)  # until a window lasts a round trip, or is the largest
    opened = first * (2**doublings - 1)  # bytes of all windows before that
    growing = np.minimum(doublings, _used_up(size, first))
    lost_s = growing * trip_s - first * (2**growing - 1) / rate
    lost_s = np.maximum(lost_s, 0.0)
    if np.isfinite(window_bytes):  # after that each window is as large as the buffers, which may not fill the path
        full = np.maximum(np.ceil((size - opened) / most) - 1, 0.0)
        lost_s = lost_s + full * np.maximum(trip_s - most / rate, 0.0)
    return lost_s


class OpenedPaths:
    """Windows that the rounds of one exchange have opened: a later round pays only for what is wider."""

    def __init__(self) -> None:
        self._pairs: Ints = np.zeros(0, dtype=np.int64)
        self._all = False
        self._paid_s: Floats = np.zeros(1)
        self._free: list[Messages] = []
        """Of rounds that had nothing to pay, whose pairs are looked up once a later one has."""

    def left_s(self, messages: Messages, start_s: Floats) -> Floats:
        """Return what a round has to pay of its slow start, (num_buckets,), and remember its pairs of ranks.

        A round in which any pair is new pays all of its own; exchanges of all with all open all pairs.
        """
        if not start_s.any():
            self._free.append(messages)
            return start_s
        while self._free:
            self._open(_pairs_of(self._free.pop()))
        pairs = _pairs_of(messages)
        known = self._all or (pairs is not None and bool(np.isin(pairs, self._pairs).all()))
        left_s = np.maximum(start_s - self._paid_s, 0.0) if known else start_s
        self._paid_s = np.maximum(self._paid_s, start_s)
        if not known:
            self._open(pairs)
        return left_s

    def _open(self, pairs: Ints | None) -> None:
        self._all = self._all or pairs is None
        if pairs is not None:
            self._pairs = np.union1d(self._pairs, pairs)


def in_turn_s(start_s: Floats) -> Floats:
    """Return what messages that follow one another over the same paths pay of slow starts of their own, (num,)."""
    before_s = np.maximum.accumulate(np.concatenate([[0.0], start_s]))[:-1]
    return np.maximum(start_s - before_s, 0.0)


def _pairs_of(messages: Messages) -> Ints | None:
    """Return a number for each pair of ranks that communicate; None for all with all."""
    if isinstance(messages, PointToPoint):
        return messages.source * _MOST_RANKS + messages.target
    if isinstance(messages, Together):
        found = [_pairs_of(part) for part in messages.parts]
        pairs = [each for each in found if each is not None]
        return np.concatenate(pairs) if len(pairs) == len(found) else None
    return None


def _after_pause(needed: Floats, least: Floats, most: Floats, pause_s: Floats | float, trip_s: Floats) -> Floats:
    """Return the windows after a pause, of those that were opened until `needed` bytes fit in."""
    reached = np.minimum(least * 2 ** _doublings(needed / least), most)
    return np.maximum(reached * 2 ** -halvings(pause_s, trip_s), least)


def _doublings(ratio: Floats) -> Floats:
    """Return how often 1 is doubled until it is at least a ratio."""
    return np.ceil(np.log2(np.maximum(ratio, 1.0)))


def _used_up(size: Floats, first: Floats) -> Floats:
    """Return how many windows are full before the last byte of a message leaves."""
    return np.maximum(np.ceil(np.log2(size / first + 1)) - 1, 0.0)
