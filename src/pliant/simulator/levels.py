"""Rounds of exchanges over two levels: inside all hosts at once, and of all slices side by side."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pliant.layouts.host_slices import parts_by_rank, slice_ranges
from pliant.netmodel import BucketBatch, DenseExchange, Floats, HostExchange, Ints, PointToPoint, Round, Together
from pliant.spec import Host, Topology
from pliant.spec.exchange import Level

__all__ = ["among_groups", "groups_of", "rounds_inside", "side_by_side", "slice_numels", "sums_inside"]


def groups_of(level: Level, topology: Topology) -> list[Ints]:
    """Return the ranks of each host or rack, in the order of their first ranks.

    Raises:
        ValueError: The topology has no racks.

    """
    first = np.cumsum([0, *(host.num_ranks for host in topology.hosts)])
    hosts = [np.arange(a, b) for a, b in pairwise(first.tolist())]
    if level == "host":
        return hosts
    if not topology.racks:
        raise ValueError(
            "the plan has a level of racks, but the topology has none; give it racks, as --racks and --uplink do."
        )
    rack_of = topology.rack_of()
    return [
        np.concatenate([ranks for ranks, its in zip(hosts, rack_of, strict=True) if its == rack])
        for rack in dict.fromkeys(rack_of)
    ]


def among_groups(level: Level, topology: Topology) -> Topology:
    """Return the topology of one rank of each host or rack."""
    if level == "host":
        return topology.one_rank_each
    return Topology(hosts=tuple(Host(name=topology.racks[rack].name) for rack in dict.fromkeys(topology.rack_of())))


def slice_numels(numel: Floats, num_slices: int) -> Floats:
    """Return the elements of each slice, (num_slices, num_buckets)."""
    return np.array([[stop - start for start, stop in slice_ranges(int(k), num_slices)] for k in numel]).T.astype(float)


def rounds_inside(batch: BucketBatch, groups: Sequence[Ints], num_slices: int) -> tuple[list[Round], list[Round]]:
    """Return the rounds of `HierarchicalAverage` inside groups, such as hosts: up to owners of slices, and down.

    Args:
        batch: Buckets.
        groups: Ranks of each group.
        num_slices: Slices.

    """
    up, back, own = list[PointToPoint](), list[PointToPoint](), list[PointToPoint]()
    added = np.zeros(len(batch.numel))
    for size in sorted({len(ranks) for ranks in groups}):
        places = np.array([ranks for ranks in groups if len(ranks) == size]).T  # (size, groups of this size)
        parts = [parts_by_rank(int(k), num_slices, size) for k in batch.numel]
        for rank in range(size):
            # (ranges that the rank adds up, num_buckets) bytes
            num_bytes = np.array([[b - a for a, b in of[rank]] for of in parts]).T * batch.itemsize
            added = np.maximum(added, num_bytes.sum(0) * (size - 1))
            for k, each in enumerate(num_bytes):
                others = [r for r in range(size) if r != rank]
                up.append(_pairs(places, others, [rank], each))
                helps = rank >= num_slices
                own += [_pairs(places, [rank], [k], each)] if helps else []
                back.append(_pairs(places, [rank], [r for r in others if not helps or r != k], each))
    reduced = Round(messages=_together(up), after={"reduce_bytes": added})
    to_owners, to_helpers = _together(own), _together([_reverse(pairs) for pairs in own])
    rounds_up = [reduced] + ([Round(messages=to_owners)] if to_owners else [])
    rounds_down = ([Round(messages=to_helpers)] if to_helpers else []) + [Round(messages=_together(back))]
    return (rounds_up, rounds_down) if reduced.messages else ([], [])


def side_by_side(rounds: Sequence[Sequence[Round]]) -> list[Round]:
    """Merge the rounds of groups of ranks that do the same on other data at once; work is that of the busiest group."""
    if len({tuple((each.repeat, each.messages is None) for each in of_group) for of_group in rounds}) > 1:
        return [each for of_group in rounds for each in of_group]
    return [_merged(same) for same in zip(*rounds, strict=True)]


def _merged(rounds: Sequence[Round]) -> Round:
    parts = [part for each in rounds if each.messages is not None for part in _parts(each.messages)]
    return replace(
        rounds[0],
        messages=Together(parts=tuple(parts)) if len(parts) > 1 else rounds[0].messages,
        before=_most([each.before for each in rounds]),
        after=_most([each.after for each in rounds]),
        before_pieces=_largest([each.before_pieces for each in rounds]),
        after_pieces=_largest([each.after_pieces for each in rounds]),
        split=_largest([each.split for each in rounds]),
    )


def _parts(messages: PointToPoint | DenseExchange | HostExchange | Together) -> Sequence[PointToPoint | DenseExchange]:
    if isinstance(messages, HostExchange):
        raise TypeError("messages of all hosts are not those of one group.")
    return messages.parts if isinstance(messages, Together) else [messages]


def _most(work: Sequence[dict[str, Floats]]) -> dict[str, Floats]:
    return {key: np.max([each[key] for each in work], axis=0) for key in work[0]}


def _largest(pieces: Sequence[Floats | None]) -> Floats | None:
    known = [each for each in pieces if each is not None]
    return np.max(known, axis=0) if known else None


def _pairs(places: Ints, sources: Sequence[int], targets: Sequence[int], num_bytes: Floats) -> PointToPoint:
    """Return messages from some places of each group to others, of which one side is a single place."""
    count = len(sources) * len(targets)
    source, target = places[list(sources) * len(targets)], places[list(targets) * len(sources)]
    share = np.ones(count * places.shape[1])
    return PointToPoint(source=source.ravel(), target=target.ravel(), share=share, num_bytes=num_bytes)


def _together(parts: Sequence[PointToPoint]) -> PointToPoint | Together | None:
    used = [part for part in parts if len(part.source) and part.num_bytes.any()]
    if len(used) < 2:
        return used[0] if used else None
    return Together(parts=tuple(used))


def _reverse(pairs: PointToPoint) -> PointToPoint:
    return replace(pairs, source=pairs.target, target=pairs.source)


def sums_inside(num_bytes: Floats, groups: Sequence[tuple[int, ...]]) -> list[Round]:
    """Return an exact sum of `num_bytes`, (num_buckets,), over the ranks of each group, around a ring of its own."""
    most = max(map(len, groups))
    if most == 1:
        return []
    repeat = 2 * (most - 1)
    source, target, share = [], [], []
    for group in sorted(groups, key=len, reverse=True):  # the first ring has `ring_ranks`
        ranks = np.array(group if len(group) > 1 else (), dtype=np.int64)
        source.append(ranks)
        target.append(np.roll(ranks, -1))
        share.append(np.full(len(ranks), 2 * (len(group) - 1) / len(group) / repeat))
    sources, targets, shares = (np.concatenate(each) for each in (source, target, share))
    pairs = PointToPoint(source=sources, target=targets, share=shares, num_bytes=num_bytes, ring_ranks=most)
    return [Round(messages=pairs, repeat=repeat, after={"reduce_bytes": num_bytes})]
