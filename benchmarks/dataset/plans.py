"""Plans that are tried in a cell, beside those that a person would try first and samples of the space. No torch."""

import random
from collections.abc import Iterator
from dataclasses import replace

from pliant.planner import BASELINES, Gene, Genome, Quality, Space
from pliant.planner.placements import rank_bandwidths
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant.spec import SyncPlan, Topology, Workload
from pliant.spec.owners import Cut

__all__ = ["FREE", "LEVELS", "NAMED", "OPTIMIZERS", "fits", "hybrids", "period_of", "quality_of"]

LEVELS = ("between_hosts(int4)", "between_racks(int4)")
"""Texts that make sense only where hosts have several ranks, or stand in racks."""
NAMED = (
    *("allreduce", "bytegrad", "qsgd(bits=4)", "terngrad", "natural", "int4", "onebit", "powersgd", "topk"),
    *("blocktopk", "randomk", "decoupled_momentum", "tasc", "tasc(ratio=0.03)", "sharded_optimizer"),
    *("bounded_staleness", "delayed", "delayed(bytegrad)", "gossip", "choco", "dcd", "local_sgd(period=4)"),
    *("diloco(period=8)", "streaming_diloco(period=8, fragments=2)", "sparse_loco(period=8)", "async_average"),
    *("post_local_sgd(warmup_steps=1, period=4)", "every(2, qsgd)", "after(2, bf16, then=onebit)"),
    *(*LEVELS, "with_target(tasc, exposed_share=0.1)", "gossip(free=1)"),
)
"""Texts of the grammar, each algorithm at least once, with periods that a trial of some seconds holds."""
FREE = ("bounded_staleness", "async_average", "gossip(free=1)")
"""Ranks go at paces of their own."""
OPTIMIZERS = ("SGD", "AdamW")
CUTS: tuple[Cut, ...] = ("auto", "rows", "whole")


def quality_of(optimizer: str) -> Quality:
    """Return limits that leave nothing out which was ever measured: costs are what the data set is about."""
    return Quality(budget=100.0, optimizer=optimizer, unmeasured=True, ratios=MEASURED_STEPS_RATIO)


def period_of(plan: SyncPlan) -> int:
    """Return the steps after which a plan begins anew."""
    return max(rule.exchange.timing.period for rule in plan.rules)


def fits(text: str, topology: Topology) -> bool:
    """Say whether an algorithm makes sense there: levels need several ranks a host, or racks."""
    if text.startswith("between_hosts"):
        return any(host.num_ranks > 1 for host in topology.hosts)
    return bool(topology.racks) or not text.startswith("between_racks")


def hybrids(
    space: Space, workload: Workload, topology: Topology, chance: random.Random
) -> Iterator[tuple[str, Genome]]:
    """Yield plans in which owners update the largest parameter, or all but it, and the rest goes another way."""
    bandwidths = rank_bandwidths(topology)
    largest = max(workload.tensors, key=lambda tensor: tensor.numel).name
    owner = BASELINES["zero-owner"].base
    while True:
        genes = space.sample(chance)
        parts: list[Gene] = [genes.base, owner]
        chance.shuffle(parts)
        try:
            found = replace(
                genes,
                base=parts[0],
                layers=(),
                names=((largest, parts[1]),),
                by_hosts=False,
                cut=chance.choice(CUTS),
                bandwidths=chance.choice(((), bandwidths)),
            )
            found.plan()
        except ValueError:
            continue
        if genes.base.family != owner.family:
            yield "hybrid", found
