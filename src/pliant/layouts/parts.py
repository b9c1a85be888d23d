"""Parts into which parameters are cut, and their owners: rules that executor and simulator share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pliant.spec import Placement
from pliant.spec.owners import Cut

__all__ = ["OwnedParts", "Range", "joint_numel", "place_parts"]

_Ints: TypeAlias = NDArray[np.int64]
_Floats: TypeAlias = NDArray[np.float64]

Range: TypeAlias = tuple[int, int]
"""Half-open range of the elements of a parameter, as they lie in memory."""

_SMALL = 64
"""What has less than this part of a rank's mean load stays whole: cutting it would not balance anything."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnedParts:
    """Parts of one parameter, one behind the other, each with its owner; some may be empty."""

    stops: _Ints
    """(num_parts,): end of each part; the last is the number of elements."""
    owners: _Ints
    """(num_parts,) ranks."""

    @property
    def numels(self) -> _Ints:
        """Elements of each part, (num_parts,)."""
        return np.diff(self.stops, prepend=0)

    @property
    def joined(self) -> "OwnedParts":
        """The same without empty parts, and with neighbours of one owner as one part; of no elements one empty part."""
        held = self.numels > 0
        stops, owners = self.stops[held], self.owners[held]
        if not len(stops):
            return OwnedParts(stops=self.stops[-1:], owners=self.owners[-1:])
        last = np.append(owners[1:] != owners[:-1], True)
        return OwnedParts(stops=stops[last], owners=owners[last])

    def by_owner(self) -> list[tuple[int, Range]]:
        """Return the owner and the range of each part, `joined`."""
        joined = self.joined
        stops: list[int] = joined.stops.tolist()
        owners: list[int] = joined.owners.tolist()
        return list(zip(owners, zip([0, *stops[:-1]], stops, strict=True), strict=True))

    def per_rank(self, amounts: _Ints | _Floats, num_ranks: int) -> _Floats:
        """Return the sum of an amount of each part, (num_parts,), over the parts of each rank, (num_ranks,)."""
        return np.bincount(self.owners, amounts, num_ranks).astype(np.float64)


def joint_numel(shape: Sequence[int], cut: Cut) -> int:
    """Return how many elements of a parameter always stay together, where its optimizer lets "auto" cut anywhere."""
    numel = math.prod(shape)
    if cut == "whole" or not shape or numel == 0:
        return max(1, numel)
    return numel // shape[0] if cut == "rows" else 1


def place_parts(
    numels: Sequence[int],
    joint_numels: Sequence[int],
    itemsizes: Sequence[int],
    placement: Placement,
    num_ranks: int,
) -> list[OwnedParts]:
    """Cut parameters into parts, and give each an owner; equal arguments give equal parts on every rank.

    The largest parameters come first. One that may be cut gives each rank as much as makes all loads, by elements over
    bandwidth, as equal as they can be. One that stays whole goes to the rank that would finish it soonest (Graham's
    longest-processing-time rule, SIAM J. Appl. Math. 17, 1969), and so does each part of at most `max_bytes`. Where
    everything large may be cut, the busiest rank has at most 1/64 more than the mean. With `owners`, each parameter is
    cut into as many equal parts, or into those of at most `max_bytes`, which go to these ranks in turn.

    Args:
        numels: Elements of each parameter.
        joint_numels: How many elements of each stay together: 1, those of a row, or all (`joint_numel`).
        itemsizes: Bytes of an element of each.
        placement: The plan's wishes.
        num_ranks: Ranks that may own parts.

    Raises:
        ValueError: The placement is for another number of ranks.

    """
    _require_ranks(placement, num_ranks)
    room = [placement.max_bytes // size // unit * unit for size, unit in zip(itemsizes, joint_numels, strict=True)]
    most = [max(unit, numel) for unit, numel in zip(joint_numels, room, strict=True)] if placement.max_bytes else []
    if placement.owners:
        return _in_turn(numels, joint_numels, most, placement.owners)
    bandwidths = np.array(placement.bandwidths or (1.0,) * num_ranks)
    held = np.zeros(num_ranks)
    small = sum(numels) / num_ranks / _SMALL
    parts: list[OwnedParts | None] = [None] * len(numels)
    everybody = np.arange(num_ranks)
    for k in sorted(range(len(numels)), key=lambda k: (-numels[k], k)):
        if most:
            stops = _stops(numels[k], most[k])
        elif joint_numels[k] >= numels[k] or numels[k] <= small or num_ranks == 1:
            stops = np.array([numels[k]])
        else:
            ends = np.cumsum(_shares(held, bandwidths, numels[k]))
            stops = np.minimum(np.rint(ends / joint_numels[k]).astype(np.int64) * joint_numels[k], numels[k])
            stops[-1] = numels[k]
            parts[k] = own = OwnedParts(stops=stops, owners=everybody)
            held += own.numels
            continue
        owners = [_soonest(held, bandwidths, numel) for numel in np.diff(stops, prepend=0).tolist()]
        parts[k] = OwnedParts(stops=stops, owners=np.array(owners))
    return [each for each in parts if each is not None]


def _require_ranks(placement: Placement, num_ranks: int) -> None:
    if placement.bandwidths and len(placement.bandwidths) != num_ranks:
        raise ValueError(
            f"the plan gives {len(placement.bandwidths)} bandwidths, but there are {num_ranks} ranks; give one for "
            "each."
        )
    if max(placement.owners, default=0) >= num_ranks:
        raise ValueError(
            f"the plan names rank {max(placement.owners)} as an owner, but there are {num_ranks} ranks, from 0 on; "
            "name ranks that there are."
        )


def _in_turn(
    numels: Sequence[int], joint_numels: Sequence[int], most: Sequence[int], owners: Sequence[int]
) -> list[OwnedParts]:
    """Return equal parts of each parameter, which go to owners in turn."""
    parts: list[OwnedParts] = []
    turn = 0
    for k, (numel, unit) in enumerate(zip(numels, joint_numels, strict=True)):
        count = max(1, min(len(owners), numel // unit))
        stops = _stops(numel, most[k]) if most else np.arange(1, count + 1) * (numel // unit) // count * unit
        parts.append(
            OwnedParts(stops=stops, owners=np.array([owners[(turn + j) % len(owners)] for j in range(len(stops))]))
        )
        turn += len(stops)
    return parts


def _stops(numel: int, most: int) -> _Ints:
    """Return the ends of parts of at most so many elements."""
    return np.minimum(np.arange(1, max(1, -(-numel // most)) + 1) * most, numel)


def _shares(held: _Floats, bandwidths: _Floats, numel: int) -> _Floats:
    """Return how many elements each rank takes, so that those that take any end at one load, and no other is above."""
    order = np.argsort(held / bandwidths, kind="stable")
    levels = (numel + np.cumsum(held[order])) / np.cumsum(bandwidths[order])  # if only the first k take any
    level = levels[max(1, np.count_nonzero(levels > (held / bandwidths)[order])) - 1]
    return np.maximum(level * bandwidths - held, 0)


def _soonest(held: _Floats, bandwidths: _Floats, numel: int) -> int:
    """Give so many elements to the rank that would finish them soonest, the lower of two that are equal."""
    rank = int(np.argmin((held + numel) / bandwidths))
    held[rank] += numel
    return rank
