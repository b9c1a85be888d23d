"""Time of an exchange by itself: stages that overlap piece by piece, on the CPU and on the wire."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.netmodel import KEYS, Floats, Links, Messages, OpenedPaths, Round, in_turn_s

__all__ = ["Exchanges", "Stage", "exchange_time"]

_AT = {key: k for k, key in enumerate(KEYS)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """Start and end of a stage, counted from the start of its exchange."""

    kind: str
    """'encode' and 'decode' for what is computed before and after messages; 'communicate'."""
    start_s: Floats
    """(num_buckets,)"""
    end_s: Floats
    """(num_buckets,)"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanges:
    """Times of exchanges of several buckets, each by itself."""

    seconds: Floats
    """(num_buckets,)"""
    counts: Floats
    """(num_buckets, num_keys): quantities on the critical path; times the coefficients they are the seconds."""
    codec_s: Floats
    """(num_buckets,): what the busiest rank computes."""
    cpu_s: Floats
    """(num_buckets,): that, and what its messages and bytes take of a core; part of it may lie within wire time."""
    sent: Floats
    """(num_buckets, num_ranks) bytes."""
    received: Floats
    """(num_buckets, num_ranks) bytes."""
    stages: tuple[Stage, ...]
    rounds: tuple[Round, ...]
    """Of which they are made."""
    others_s: tuple[Floats, ...]
    """(num_buckets,) for each round with messages: seconds beside their bytes and delays."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stage:
    """Work of one resource: `busy` can overlap with its neighbours piece by piece, `lag` delays all of it."""

    kind: str
    busy: Floats
    lag: Floats
    pieces: Floats
    """(num_buckets,): of so many pieces, each begins when the stage before has done its own."""
    share: float
    """Part of the stage before that these pieces span."""


def exchange_time(
    rounds: Sequence[Round],
    links: Links,
    coefficients: Floats,
    num_buckets: int,
    *,
    own_work: bool = True,
    pause_s: float = 0.0,
    socket_cpu_s: tuple[float, float] = (0.0, 0.0),
) -> Exchanges:
    """Return what rounds take, one after another, with the overlap that their pieces allow.

    A stage ends when it has worked for its time since the first piece came, and not before it has worked on the last
    piece after that came (the makespan of a flow shop with equal pieces); the CPU and the wire do one stage at a time.
    Buckets follow one another: the first opens TCP's windows, and others pay for what they need beyond that.

    Args:
        rounds: Of one exchange, for all buckets.
        links: The network.
        coefficients: Seconds per unit of each of KEYS, (num_keys,).
        num_buckets: Of the rounds.
        own_work: Whether an exchange has the cost of a bucket.
        pause_s: Time without messages before the first bucket.
        socket_cpu_s: CPU seconds for each message, and for each byte, that a rank sends or receives.

    """
    wires = _Wires(links, coefficients, pause_s)
    stages = _stages(rounds, wires, num_buckets, own_work=own_work)
    zero = np.zeros((num_buckets, len(KEYS)))
    first = end = zero
    free = {True: zero, False: zero}
    windows: list[Stage] = []
    for k, stage in enumerate(stages):
        on_wire = stage.kind == "communicate"
        start = _later(first, free[on_wire], coefficients)
        whole = stage.busy + stage.lag
        last_piece = end + stage.lag + stage.busy / stage.pieces[:, None]
        end = _later(start + whole, last_piece, coefficients)
        free[on_wire] = end
        windows.append(Stage(kind=stage.kind, start_s=start @ coefficients, end_s=end @ coefficients))
        first = end
        if k + 1 < len(stages):
            follower = stages[k + 1]
            hold = 1 - follower.share * (1 - 1 / follower.pieces)  # (num_buckets,)
            first = np.where(follower.pieces[:, None] > 1, start + stage.lag + stage.busy * hold[:, None], end)
    worked = sum((s.busy for s in stages if s.kind != "communicate"), zero)
    sent = sum((r.sent(links.num_ranks) for r in rounds), np.zeros((num_buckets, links.num_ranks)))
    received = sum((r.received(links.num_ranks) for r in rounds), np.zeros((num_buckets, links.num_ranks)))
    return Exchanges(
        seconds=end @ coefficients,
        counts=end,
        codec_s=worked @ coefficients,
        cpu_s=worked @ coefficients + socket_cpu_s[0] * wires.handled + socket_cpu_s[1] * (sent + received).max(1),
        sent=sent,
        received=received,
        stages=tuple(windows),
        rounds=tuple(rounds),
        others_s=tuple(wires.others_s),
    )


def _stages(rounds: Sequence[Round], wires: "_Wires", num_buckets: int, *, own_work: bool) -> list[_Stage]:
    none, whole = np.zeros((num_buckets, len(KEYS))), np.ones(num_buckets)
    stages: list[_Stage] = []
    if rounds and own_work:
        overhead = none.copy()
        overhead[:, _AT["buckets"]] = 1
        stages.append(_Stage(kind="encode", busy=overhead, lag=none, pieces=whole, share=1.0))
    for each in rounds:
        if each.before:
            stages.append(_Stage(kind="encode", busy=_counts(each.before, none), lag=none, pieces=whole, share=1.0))
        if each.messages is not None:
            busy, lag = wires.of(each, each.messages, none)
            pieces = whole if each.before_pieces is None else each.before_pieces
            stages.append(_Stage(kind="communicate", busy=busy, lag=lag, pieces=pieces, share=1.0))
        if each.after:
            pieces = whole if each.after_pieces is None else each.after_pieces
            busy = _counts(each.after, none)
            stages.append(_Stage(kind="decode", busy=busy, lag=none, pieces=pieces, share=each.after_share))
    return stages


def _counts(work: dict[str, Floats], none: Floats) -> Floats:
    counts = none.copy()
    for key, amount in work.items():
        counts[:, _AT[key]] = amount
    return counts


class _Wires:
    """Time of the messages of one exchange, round by round."""

    def __init__(self, links: Links, coefficients: Floats, pause_s: float) -> None:
        self._links, self._coefficients, self._pause_s = links, coefficients, pause_s
        self._opened = OpenedPaths()
        self.others_s: list[Floats] = []
        """Time of each round that its messages take of a rank, and TCP to open its windows, (num_buckets,)."""
        self.handled: Floats | float = 0.0
        """Messages of the busiest ranks, (num_buckets,)."""

    def of(self, each: Round, messages: Messages, none: Floats) -> tuple[Floats, Floats]:
        """Return the time that occupies the wire and the time that only delays, (num_buckets, num_keys) both."""
        took = self._links.load(messages, each.repeat, self._pause_s, posted=each.posted)
        loopback, wire = self._coefficients[_AT["loopback_bytes"]], self._coefficients[_AT["wire_s"]]
        inside = took.loopback_bytes * loopback > took.rate_s * wire
        busy, lag = none.copy(), none.copy()
        busy[:, _AT["loopback_bytes"]] = np.where(inside, took.loopback_bytes, 0)
        busy[:, _AT["wire_s"]] = np.where(inside, 0, took.rate_s)
        pieces = 1.0 if each.split is None else each.split
        behind = self._links.overheads.handling_share if each.posted else 1.0
        busy[:, _AT["messages"]] = took.num_messages * (1 + (pieces - 1) * behind)
        self.handled += took.num_messages * pieces
        starting_s = self._opened.left_s(messages, in_turn_s(took.start_s)) + took.staging_s
        lag[:, _AT["latency_s"]] = took.latency_s + starting_s
        self.others_s.append(starting_s + busy[:, _AT["messages"]] * self._coefficients[_AT["messages"]])
        return busy, lag


def _later(a: Floats, b: Floats, coefficients: Floats) -> Floats:
    """Return, per bucket, the counts of the later of two moments."""
    return np.where((a @ coefficients >= b @ coefficients)[:, None], a, b)
