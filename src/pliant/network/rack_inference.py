"""Inference of racks from streams of all pairs of hosts: a pure function of a matrix."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pliant.network.inference import NOISE, Matrix, log_distance
from pliant.spec import Rack

__all__ = ["has_changed", "infer_racks", "near_groups", "rounds_between", "within_racks"]

_SHARING = -0.25
"""Slope of the logarithm of a stream's rate over that of the number of streams at once, above which they share nothing.
It is -1 where they share an uplink evenly, and 0 where each has a path of its own."""
_CHANGE, _MOST_CHANGED = 0.25, 1 / 3
"""Part by which a second try of a stream differs, and share of streams whose second try does, from which on they share
something. On emulated hosts half to nine tenths of streams through one queue did, and none on paths of their own."""
_ALIKE = 2.5
"""Factor within which what leaves a rack at once is the same: short streams do not share evenly, nor at all times."""


def infer_racks(names: Sequence[str], *looks: Matrix, least: float = 0.0) -> tuple[Rack, ...]:
    """Return the racks of hosts, with the rates out of them and into them; none if streams do not show any.

    Hosts of a rack reach what both can do, and hosts of different racks do not. Streams to the host so many before
    each, all at once, have one rate in sum out of a rack, and one into it, whether few of them leave it or many. Where
    pairs have paths of their own, a stream does not care how many others there are. Where queues are short, streams do
    not share evenly, and only a second look tells: through one queue most streams differ from what they were.

    Args:
        names: Of the hosts.
        looks: One or two of them: bytes per second from row to column, (hosts, hosts), those of equal distance measured
            at once; 0 on the diagonal, and where nothing was measured. Of one look, nobody can tell where always as
            many streams leave a rack, as with hosts of two racks in turn.
        least: Rate at which messages around a ring of all hosts have gone, in bytes per second. A flow at least leaves
            each rack there, and many streams at once were seen to have half of an uplink in sum.

    """
    groups = near_groups(looks[0])
    if len(looks) > 1 and groups and _changed(looks[0], looks[1], groups).mean() <= _MOST_CHANGED:
        return ()
    found: list[Rack] = []
    for k, hosts in enumerate(groups):
        up, down = (_uplink(each, hosts) for each in (looks, [look.T for look in looks]))
        if not up or not down:
            return ()
        its = tuple(names[int(host)] for host in hosts)
        rates = {"send_bytes_per_s": max(up, least), "receive_bytes_per_s": max(down, least)}
        found.append(Rack(name=f"rack{k}", hosts=its, **rates))
    return tuple(found)


def near_groups(rates: Matrix) -> list[NDArray[np.int64]]:
    """Return the groups of hosts that reach what both can do; none if hosts are not in groups, or all in one.

    They are racks if streams between them share a rate.

    Args:
        rates: A look, as in `infer_racks`.

    """
    num = len(rates)
    if num < 3 or np.count_nonzero(rates) < num * (num - 1):
        return []
    near = _are_near(rates)
    groups = sorted((np.flatnonzero(row) for row in np.unique(near, axis=0)), key=lambda hosts: int(hosts[0]))
    is_whole = 1 < len(groups) < num and sum(map(len, groups)) == num  # each host in one, and near all others there
    return groups if is_whole else []


def rounds_between(groups: Sequence[NDArray[np.int64]], shifts: Sequence[int]) -> list[int]:
    """Return rounds, named by how far before a host the one is that it sends to; most streams between groups first."""
    group_of = np.empty(sum(map(len, groups)), dtype=np.int64)
    for k, hosts in enumerate(groups):
        group_of[hosts] = k
    return sorted(shifts, key=lambda shift: np.count_nonzero(group_of == np.roll(group_of, -shift)))


def has_changed(first: Matrix, second: Matrix, groups: Sequence[NDArray[np.int64]]) -> bool:
    """Say whether any stream between groups differs from what it was; 0 in the second look where there was none."""
    return bool(_changed(first, second, groups).any())


def within_racks(rates: Matrix) -> Matrix:
    """Return the rates of pairs that reach what both hosts can do; 0 for others."""
    return np.where(_are_near(rates), rates, 0.0)


def _are_near(rates: Matrix) -> NDArray[np.bool_]:
    """Return which hosts reach what both can do, both ways, (hosts, hosts); each is near itself."""
    near = rates >= (1 - NOISE) * np.minimum(rates.max(1)[:, None], rates.max(0)[None])
    return (near & near.T) | np.eye(len(rates), dtype=bool)


def _changed(first: Matrix, second: Matrix, groups: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Return which streams between groups differ from what they were, of those that had a second try, (streams,)."""
    between = second > 0
    for hosts in groups:
        between[np.ix_(hosts, hosts)] = False
    return log_distance(second[between], first[between]) > np.log1p(_CHANGE)


def _uplink(looks: Sequence[Matrix], hosts: NDArray[np.int64]) -> float:
    """Return what leaves a rack at once, in bytes per second; 0 if streams do not share it."""
    num = len(looks[0])
    others = np.setdiff1d(np.arange(num), hosts)
    distance = ((hosts[:, None] - others[None]) % num).ravel()  # of streams at once
    each = np.stack([look[np.ix_(hosts, others)].ravel() for look in looks])  # (looks, streams)
    counts = np.bincount(distance, minlength=num)
    some = counts > 0
    sums = np.stack([np.bincount(distance, one, num)[some] for one in each])  # (looks, distances)
    counts = counts[some]
    # Streams that share end one after another, and the last ones have more: the fewer there are, the less that adds.
    fewest = np.sort(sums[:, counts == counts.min()], axis=None)
    typical = float(min(np.median(sums), fewest[-1 - len(fewest) // 4]))
    if len(looks) > 1:
        return typical
    if counts.min() == counts.max():
        return 0.0
    slope = np.polyfit(np.log(counts), np.log(sums[0] / counts), 1)[0]
    is_one = max(sums.max() / typical, typical / sums.min()) <= _ALIKE
    return typical if is_one and slope <= _SHARING else 0.0
