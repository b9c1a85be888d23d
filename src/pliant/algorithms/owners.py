"""Functions for algorithms with owners of parts: each returns a node of a plan. No torch here."""

from pliant.algorithms.inputs import CodecLike, OwnerScheduleLike, as_codec_spec, as_owner_schedule
from pliant.spec import Acco, ParameterServer, Placement, ShardedOptimizer
from pliant.spec.owners import Cut

__all__ = ["acco", "bounded_staleness", "sharded_optimizer"]


def sharded_optimizer(
    codec: CodecLike | None = None,
    *,
    bandwidths: tuple[float, ...] = (),
    cut: Cut = "auto",
    max_bytes: int = 0,
    owners: tuple[int, ...] = (),
    schedule: OwnerScheduleLike = "direct",
) -> ShardedOptimizer:
    """Let owners step their parts of parameters: optimizer state and work are divided by the ranks (ZeRO-1).

    Rajbhandari et al., ZeRO, arXiv:1910.02054, stage 1.

    Args:
        codec: An unbiased codec in which gradients travel; None for full precision.
        bandwidths: One for each rank, in any unit: a rank owns parts in proportion. Equal if empty.
        cut: Where parameters may be cut: "whole" nowhere, "rows" between rows, "flat" anywhere; "auto" anywhere if the
            optimizer works element by element, else nowhere.
        max_bytes: Most bytes of a part; 0 for one part of each rank.
        owners: Ranks to which the parts go in turn; empty to balance the load.
        schedule: How gradients go to owners, and new weights back: "direct" straight to each and from each to all,
            "auto" as is the fastest for the links, or a topology, a schedule, or a file of one.

    >>> from pliant.spec import CodecSpec
    >>> str(sharded_optimizer(CodecSpec(name="qsgd")))
    'ShardedOptimizer(codec=qsgd)'
    >>> str(sharded_optimizer(cut="rows", owners=(0, 2)))
    "ShardedOptimizer(placement=Placement(cut='rows', owners=(0, 2, )))"

    """
    placement = Placement(bandwidths=tuple(bandwidths), cut=cut, max_bytes=max_bytes, owners=tuple(owners))
    return ShardedOptimizer(codec=as_codec_spec(codec), placement=placement, schedule=as_owner_schedule(schedule))


def acco(
    codec: CodecLike | None = None,
    *,
    bandwidths: tuple[float, ...] = (),
    cut: Cut = "auto",
    max_bytes: int = 0,
    owners: tuple[int, ...] = (),
    schedule: OwnerScheduleLike = "direct",
) -> Acco:
    """Let owners step beside the next backward pass, on trial and for good in turn, so that no gradient is late.

    ACCO (Nabli et al., arXiv:2406.02613): the optimizer makes one step for two of the training loop, with the mean of
    their gradients. Settings are those of `sharded_optimizer`.

    >>> str(acco())
    'Acco'
    """
    placement = Placement(bandwidths=tuple(bandwidths), cut=cut, max_bytes=max_bytes, owners=tuple(owners))
    return Acco(codec=as_codec_spec(codec), placement=placement, schedule=as_owner_schedule(schedule))


def bounded_staleness(
    staleness: int = 1,
    *,
    codec: CodecLike | None = None,
    bandwidths: tuple[float, ...] = (),
    cut: Cut = "auto",
    max_bytes: int = 0,
    owners: tuple[int, ...] = (),
) -> ParameterServer:
    """Let owners apply gradients as they arrive; a rank is at most `staleness` steps ahead of the slowest.

    Stale synchronous parallel (Ho et al., NeurIPS 2013). Gradients travel in `codec`, with error feedback on the
    worker, or in float32. Parameters are cut and placed as by `sharded_optimizer`.

    >>> str(bounded_staleness(2))
    'ParameterServer(staleness=2)'
    """
    placement = Placement(bandwidths=tuple(bandwidths), cut=cut, max_bytes=max_bytes, owners=tuple(owners))
    return ParameterServer(staleness=staleness, codec=as_codec_spec(codec), placement=placement)
