"""Load of a round of messages on everything that has a rate, and the paths that its messages take."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from pliant.netmodel.messages import Floats, Ints

__all__ = ["Loads", "Paths", "at_once", "elsewhere", "largest_elsewhere"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Paths:
    """Ways of messages from host to host, for the time that TCP takes to open its windows."""

    columns: Ints
    """(num_paths, num_columns): what each goes through, as columns of the times of a round; one may be there twice."""
    num_bytes: Floats
    """(num_buckets, num_paths)"""
    trip_s: Floats
    """(num_buckets or 1, num_paths): round trip."""
    delay_s: Floats
    """(num_buckets or 1, num_paths): from a message's last byte to its arrival; 0 around a ring."""
    connections: Floats
    """(num_buckets, num_paths): all that carry a slice of a message, see `paths.connections_of`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loads:
    """Load of a round on everything that has a rate; arrays of one bucket stand for all."""

    out: Floats
    """(num_buckets, num_hosts) bytes that leave a host."""
    into: Floats
    """(num_buckets, num_hosts)"""
    flows_out: Floats
    """(num_buckets, num_hosts): messages that leave a host at once."""
    flows_into: Floats
    up: Floats
    """(num_buckets, num_racks) bytes that leave a rack."""
    down: Floats
    links: Floats
    """(num_buckets, num_links) bytes over links with a rate of their own."""
    inside: Floats
    """(num_buckets, num_hosts) bytes between ranks of a host."""
    late_out: Floats
    """(num_buckets, num_hosts): the longest delay of messages that leave a host; 0 around a ring."""
    late_into: Floats
    late_links: Floats
    """(num_buckets, num_links)"""
    around_s: Floats
    """(num_buckets,): what all rounds around a ring take beyond the busiest hop, see `rings`; 0 of other messages."""
    paths: tuple[Paths, ...]
    """Empty where nobody has asked for them."""


_LONGEST = ("late_out", "late_into", "late_links", "around_s")
"""Of sets of messages at once the longest counts, and of all else the sum."""


def at_once(loads: Sequence[Loads]) -> Loads:
    """Return the load of several sets of messages."""
    names = [each.name for each in fields(Loads) if each.name != "paths"]
    found = {
        name: reduce(np.maximum if name in _LONGEST else np.add, [getattr(each, name) for each in loads])
        for name in names
    }
    return Loads(**found, paths=tuple(path for each in loads for path in each.paths))


def elsewhere(x: Floats) -> Floats:
    """Return the sum over all others, along the last axis."""
    return x.sum(-1, keepdims=True) - x


def largest_elsewhere(x: Floats) -> Floats:
    """Return the largest of all others along the last axis, of figures of at least 0; 0 where there are none."""
    second, first = np.moveaxis(np.sort(np.append(x, np.zeros_like(x[..., :1]), axis=-1))[..., -2:], -1, 0)
    return np.where(x == first[..., None], second[..., None], first[..., None])
