"""Inference of racks from streams of all pairs of hosts: a pure function of a matrix."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pliant.network.inference import NOISE, Matrix
from pliant.spec import Rack

__all__ = ["infer_racks", "within_racks"]

_SHARED = 0.75
"""Share of the rate of a stream alone on an uplink that a stream beside others has at most."""
_ALIKE = 2.5
"""Factor within which what leaves a rack at once is the same: short streams do not share evenly, nor at all times."""


def infer_racks(names: Sequence[str], rates: Matrix) -> tuple[Rack, ...]:
    """Return the racks of hosts, with the rates out of them and into them; none if streams do not show any.

    Hosts of a rack reach what both can do, and hosts of different racks do not. Streams to the host so many before
    each, all at once, have one rate in sum out of a rack, and one into it, whether few of them leave it or many. Where
    pairs have paths of their own, a stream does not care how many others there are. Where always as many leave a rack,
    as with hosts of two racks in turn, nobody can tell.

    Args:
        names: Of the hosts.
        rates: Bytes per second from row to column, (hosts, hosts), those of equal distance measured at once; 0 on the
            diagonal, and where nothing was measured.

    """
    num = len(rates)
    if num < 3 or np.count_nonzero(rates) < num * (num - 1):
        return ()
    near = _are_near(rates)
    racks = sorted((np.flatnonzero(row) for row in np.unique(near, axis=0)), key=lambda hosts: int(hosts[0]))
    if not 1 < len(racks) < num or sum(map(len, racks)) != num:
        return ()  # each host must be in one, and near all others there
    found: list[Rack] = []
    for k, hosts in enumerate(racks):
        up, down = (_uplink(matrix, hosts) for matrix in (rates, rates.T))
        if not up or not down:
            return ()
        its = tuple(names[host] for host in hosts.tolist())
        found.append(Rack(name=f"rack{k}", hosts=its, send_bytes_per_s=up, receive_bytes_per_s=down))
    return tuple(found)


def within_racks(rates: Matrix) -> Matrix:
    """Return the rates of pairs that reach what both hosts can do; 0 for others."""
    return np.where(_are_near(rates), rates, 0.0)


def _are_near(rates: Matrix) -> NDArray[np.bool_]:
    """Return which hosts reach what both can do, both ways, (hosts, hosts); each is near itself."""
    near = rates >= (1 - NOISE) * np.minimum(rates.max(1)[:, None], rates.max(0)[None])
    return (near & near.T) | np.eye(len(rates), dtype=bool)


def _uplink(rates: Matrix, hosts: NDArray[np.int64]) -> float:
    """Return what leaves a rack at once, in bytes per second; 0 if streams do not share it."""
    num = len(rates)
    others = np.setdiff1d(np.arange(num), hosts)
    distance = (hosts[:, None] - others[None]) % num  # of streams at once
    each = rates[np.ix_(hosts, others)]
    counts = np.bincount(distance.ravel(), minlength=num)
    sums = np.bincount(distance.ravel(), each.ravel(), num)
    some = counts > 0
    counts, sums = counts[some], sums[some]
    alone, crowded = (sums / counts)[counts == counts.min()].mean(), (sums / counts)[counts == counts.max()].mean()
    typical = float(np.median(sums))
    is_one = max(sums.max() / typical, typical / sums.min()) <= _ALIKE
    return typical if is_one and crowded <= _SHARED * alone else 0.0
