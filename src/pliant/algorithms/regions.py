"""Function for local steps with servers in two tiers, which returns a node of a plan. No torch here."""

from pliant.spec import Outer, RegionServers

__all__ = ["halos"]


def halos(
    period: int = 8,
    *,
    region_ranks: int = 4,
    arrivals: int = 32,
    pull: float = 0.25,
    region_lr: float = 0.2,
    region_momentum: float = 0.9,
    region_every: int = 16,
    world_lr: float = 0.15,
    world_momentum: float = 0.5,
    world_every: int = 2,
    scaled: bool = True,
) -> RegionServers:
    """Send changes of local steps to a server of each region, and regions' changes to one of all (HALoS).

    Kim et al., hierarchical asynchronous local SGD (arXiv:2506.04531): nobody waits for anybody. Defaults are those of
    the authors' example, four regions of four ranks. Codecs are for means of changes, and servers answer with weights,
    so there is none. With one region it is asynchronous local SGD with delayed Nesterov (arXiv:2401.09135).

    Args:
        period: Steps of the fastest rank from one of its changes to the next.
        region_ranks: Ranks of a region, in their order; the first of them serves it, and rank 0 all regions.
        arrivals: Changes that a region's server takes before it sends its own.
        pull: Part of the way to the point of all regions that a region's goes when it comes, above 0 and up to 1.
        region_lr: Rate of a region's server for each change.
        region_momentum: Its momentum.
        region_every: Changes from one step of its momentum to the next; 1 without a momentum.
        world_lr: Rate of the server of all regions, likewise for each change of a region.
        world_momentum: Its momentum.
        world_every: As for a region.
        scaled: Whether slower ranks make fewer steps in a period (dynamic local updates).

    >>> str(halos(16, region_ranks=8))
    'RegionServers(period=16, region_ranks=8)'

    """
    return RegionServers(
        period=period,
        scaled=scaled,
        region_ranks=region_ranks,
        region=Outer(lr=region_lr, momentum=region_momentum, every=region_every),
        arrivals=arrivals,
        world=Outer(lr=world_lr, momentum=world_momentum, every=world_every),
        pull=pull,
    )
