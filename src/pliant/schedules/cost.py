"""Cost of a schedule on a topology, block by block, and a bound that none can beat."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.netmodel import Floats, Links, OpenedPaths, Overheads, PointToPoint
from pliant.schedules.collective import Collective
from pliant.spec import Move, Schedule, Topology

__all__ = ["Cost", "RoundCost", "lower_bound_s", "messages_of", "predict_cost", "times_s"]


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """Seconds of one round by cause; they follow one another, but interfaces and loopback work at once."""

    wire_s: float
    """Seconds of the busiest interface: a host's or a rack's rate out, its rate in, or a link with a rate of its
    own."""
    loopback_s: float
    """Seconds of the host with the most bytes between its own ranks."""
    latency_s: float
    """Seconds from when the busiest interface is done until the last message arrives."""
    start_s: float
    """Seconds that TCP's slow start adds, where no round before went over the same pairs."""
    message_s: float
    """Seconds of the rank that handles the most messages."""
    reduce_s: float
    """Seconds of the rank that adds the most up."""

    @property
    def total_s(self) -> float:
        """Seconds of the round."""
        return max(self.wire_s, self.loopback_s) + self.latency_s + self.start_s + self.message_s + self.reduce_s


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted cost of a schedule."""

    rounds: tuple[RoundCost, ...]
    sent_bytes: tuple[int, ...]
    """Bytes that each rank sends."""
    num_messages: int

    @property
    def total_s(self) -> float:
        """Rounds follow one another."""
        return sum(each.total_s for each in self.rounds)


def predict_cost(
    schedule: Schedule, collective: Collective, topology: Topology, overheads: Overheads | None = None
) -> Cost:
    """Predict a schedule: alpha, beta and gamma with the bytes that this bitmap asks for, round by round.

    A round lasts as long as its busiest resource, an interface longer if flows share it (`Overheads.sharing`); since
    rounds wait for one another at every rank that takes part, their times add up. Two ranks of one host load its
    loopback and not its link. After `Overheads.pause_s` without messages TCP starts slowly on each pair.

    Raises:
        ValueError: The topology has another number of ranks.

    """
    if topology.num_ranks != schedule.num_ranks:
        raise ValueError(
            f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks, but the topology has "
            f"{topology.num_ranks}."
        )
    links, opened = Links(topology, overheads), OpenedPaths()
    rounds: list[RoundCost] = []
    sent = np.zeros(schedule.num_ranks, dtype=np.int64)
    num_messages = 0
    for moves in schedule.rounds:
        messages, most_reduced = messages_of(moves, collective.block_bytes, np.ones(1))
        np.add.at(sent, messages.source, messages.share.astype(np.int64))
        num_messages += len(messages.source)
        took = links.load(messages)
        rounds.append(
            RoundCost(
                wire_s=float(took.wire_s[0]),
                loopback_s=float(took.loopback_s[0]),
                latency_s=float(took.latency_s[0]),
                start_s=float(opened.left_s(messages, took.start_s)[0]),
                message_s=float(took.message_s[0]),
                reduce_s=most_reduced * _reduce_s(links),
            )
        )
    return Cost(rounds=tuple(rounds), sent_bytes=tuple(sent.tolist()), num_messages=num_messages)


def times_s(
    schedule: Schedule,
    shares: Sequence[float],
    num_bytes: Floats,
    topology: Topology,
    overheads: Overheads | None = None,
) -> Floats:
    """Return what `predict_cost` predicts for several sizes at once, (num_sizes,), with blocks that are not rounded.

    Args:
        schedule: Its moves.
        shares: Part of each block in the bytes; moves of blocks without one are left out.
        num_bytes: (num_sizes,)
        topology: Network of as many ranks.
        overheads: Overheads beside it.

    """
    links, opened, total_s = Links(topology, overheads), OpenedPaths(), np.zeros(len(num_bytes))
    for moves in schedule.rounds:
        moving = [move for move in moves if shares[move.block]]
        if moving:
            messages, most_reduced = messages_of(moving, shares, num_bytes)
            took = links.load(messages)
            starting_s = opened.left_s(messages, took.start_s) - took.start_s
            total_s += took.total_s + starting_s + num_bytes * most_reduced * _reduce_s(links)
    return total_s


def messages_of(moves: Sequence[Move], sizes: Sequence[float], num_bytes: Floats) -> tuple[PointToPoint, float]:
    """Return the messages of a round, one a pair of ranks, and how much the rank adds up that adds the most."""
    pairs, reduced = defaultdict[tuple[int, int], float](float), defaultdict[int, float](float)
    for move in moves:
        pairs[move.source, move.target] += sizes[move.block]
        reduced[move.target] += sizes[move.block] * (move.kind == "reduce")
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)  # (num_messages, 2)
    share = np.array(list(pairs.values()), dtype=np.float64)
    messages = PointToPoint(source=ends[:, 0], target=ends[:, 1], share=share, num_bytes=num_bytes)
    return messages, max(reduced.values(), default=0.0)


def _reduce_s(links: Links) -> float:
    """Return the time in which a rank adds up a byte."""
    return links.topology.ranks_per_cpu / links.overheads.reduce_bytes_per_s


def lower_bound_s(collective: Collective, topology: Topology, overheads: Overheads | None = None) -> float:
    """Return a time that no schedule beats, whatever its owners and rounds are.

    Bytes: a host with a block that others need sends it once at least, and one that needs others' blocks receives each
    once at least. A block that is held on p hosts and needed on q crosses between hosts p - 1 times to become one sum.
    It crosses q - 1 times to be everywhere (q, if no holder needs it), at the rates of all hosts together. The same
    holds for racks and their uplinks. With all bytes held and needed by all this is the bound 2 (n - 1)/n of
    all-reduce. Latency: a sum over hosts that is needed on several has two rounds between hosts. The result is the
    largest of the byte bounds and the latency.
    """
    links = Links(topology, overheads)
    host_of: list[int] = links.host_of.tolist()
    num_rounds = num_crossings = 0
    for held, needed in zip(collective.holders, collective.needers, strict=True):
        if held and needed:
            holding, needing = {host_of[r] for r in held}, {host_of[r] for r in needed}
            # Forming the sum and spreading it are rounds of their own, unless one rank, or one host, does without.
            num_rounds = max(num_rounds, (len(held) > 1) + (len(needed) > 1) or int(held != needed))
            num_crossings = max(num_crossings, (len(holding) > 1) + (len(needing) > 1) or int(holding != needing))
    rack_of: list[int] = links.rack_of[links.host_of].tolist() if len(links.up_s) else []  # (num_ranks,)
    wire_s = links.overheads.wire_factor * max(
        _crossing_s(collective, host_of, *_sides_s(links)),
        _crossing_s(collective, rack_of, links.up_s.tolist(), links.down_s.tolist()),
    )
    apart = ~np.eye(links.num_hosts, dtype=bool)
    shortest_s = float(links.delays_s[apart].min(initial=np.inf)) if links.num_hosts > 1 else 0.0
    return wire_s + num_crossings * shortest_s + num_rounds * links.overheads.message_s


def _sides_s(links: Links) -> tuple[list[float], list[float]]:
    """Return seconds per byte out of each host and into it, (num_hosts,): of its interface, or of all its links."""
    rates = np.zeros((links.num_hosts, links.num_hosts))
    rates[links.link_source, links.link_target] = 1 / np.maximum(links.link_s, 1e-300) * (links.link_s > 0)
    apart = ~np.eye(links.num_hosts, dtype=bool)
    sides: list[list[float]] = []
    for own_s, out in ((links.out_s, rates), (links.in_s, rates.T)):
        limited = ((out > 0) | ~apart).all(axis=1) & (links.num_hosts > 1)  # all links have a rate of their own
        all_s = np.where(limited, 1 / np.maximum(out.sum(axis=1), 1e-300), 0.0)
        sides.append(np.maximum(own_s, all_s).tolist())
    return sides[0], sides[1]


def _crossing_s(
    collective: Collective, place_of: Sequence[int], out_s: Sequence[float], in_s: Sequence[float]
) -> float:
    """Return how long bytes take at least between places: hosts, or racks.

    Args:
        collective: What has to be achieved.
        place_of: The place of each rank.
        out_s: Seconds per byte out of each place; there are no places if empty.
        in_s: And into it.

    """
    if not out_s:
        return 0.0
    out, into = [0] * len(out_s), [0] * len(in_s)
    crossing = 0
    for held, needed, num_bytes in zip(collective.holders, collective.needers, collective.block_bytes, strict=True):
        if not (held and needed):
            continue
        holding, needing = {place_of[r] for r in held}, {place_of[r] for r in needed}
        for place in holding:
            out[place] += num_bytes * bool(needing - {place})
        for place in needing:
            into[place] += num_bytes * bool(holding - {place})
        crossing += num_bytes * (len(holding) - 1 + len(needing) - bool(holding & needing))
    wires = [n * s for n, s in zip(out + into, (*out_s, *in_s), strict=True)]
    for side_s in (out_s, in_s):
        if min(side_s) > 0:
            wires.append(crossing / sum(1 / s for s in side_s))
    return max(wires)
