"""Who owns which parameter."""

from collections.abc import Sequence

__all__ = ["place"]


def place(numels: Sequence[int], bandwidths: Sequence[float]) -> tuple[int, ...]:
    """Return the owner of each parameter: the largest first, each to the rank that would be done with it soonest.

    Graham's longest-processing-time rule (SIAM J. Appl. Math. 17, 1969), for machines of different speed: with equal
    bandwidths the fullest rank has at most 4/3 of what the best placement would give it. A parameter is never cut, so
    that optimizers which look at whole matrices (Muon, LAMB, Adafactor) work as they are. Equal arguments give equal
    owners on every rank: ties go to the lower index.

    Args:
        numels: Elements of each parameter.
        bandwidths: What each rank's network carries, in any unit; positive.

    """
    if not bandwidths or min(bandwidths) <= 0:
        raise ValueError(f"the bandwidths of the owners are {tuple(bandwidths)}, but each must be positive.")
    held = [0] * len(bandwidths)
    owners = [0] * len(numels)
    for k in sorted(range(len(numels)), key=lambda k: (-numels[k], k)):
        owners[k] = min(range(len(held)), key=lambda r: ((held[r] + numels[k]) / bandwidths[r], r))
        held[owners[k]] += numels[k]
    return tuple(owners)
