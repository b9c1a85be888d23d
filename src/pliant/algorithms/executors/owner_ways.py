"""Ways of gradients to the owners of parts, and of new weights from there, by the schedules of a plan."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pliant.codecs import Codec
from pliant.collectives.owner import OwnerWay, OwnerWays
from pliant.collectives.owner_slices import OwnerSlices, hosts_of
from pliant.comm.base import Comm
from pliant.comm.hierarchical import HierarchicalComm
from pliant.schedules.choice import ScheduleChoice, SumKind, SumWay, choice_for
from pliant.schedules.coded import ScheduledCodedSum
from pliant.schedules.execute import ScheduledAllReduce
from pliant.schedules.owned import direct_s, owner_task
from pliant.schedules.rooted import Half, place_half
from pliant.spec import Exchange, Schedule, Topology
from pliant.spec.owners import schedule_of

__all__ = ["owner_ways"]


def owner_ways(node: Exchange, comm: Comm) -> OwnerWays | None:
    """Return the ways of a node with owners over a comm, with levels or without; None if all goes directly.

    Raises:
        ValueError: Links were to be measured, and nobody has; or a schedule or topology is for other ranks.

    """
    schedule = schedule_of(node)
    if schedule == "direct":
        return None
    if isinstance(schedule, str):
        raise ValueError(
            "schedule='auto' needs the network's links, which nobody has measured here; start with pliant.relax(), or "
            "give a topology."
        )
    flat, num_places = comm.flat if isinstance(comm, HierarchicalComm) else comm, len(hosts_of(comm))
    if num_places == 1 and isinstance(schedule, Topology):
        return None
    return _ChosenWays(choice_for(flat, schedule, num_places))


class _ChosenWays:
    """Ways by the schedules of a choice, half of one for parts of each size, and straight where there is none.

    Vectors with parts of the same sizes, such as those of several buckets, go the same way.
    """

    def __init__(self, choice: ScheduleChoice) -> None:
        self._choice = choice

    def to_owners(self, slices: OwnerSlices, x: Tensor, codec: Codec | None) -> OwnerWay:
        """Return the way of sums to owners; see `OwnerWays`."""
        make = partial(_as_it_is, slices, x, "reduce") if codec is None else partial(_coded, slices, x.device, codec)
        return self._way(self._kind(slices, x, "reduce", codec, make), x)

    def from_owners(self, slices: OwnerSlices, x: Tensor) -> OwnerWay:
        """Return the way of parts to all; see `OwnerWays`."""
        return self._way(self._kind(slices, x, "copy", None, partial(_as_it_is, slices, x, "copy")), x)

    def _way(self, kind: SumKind, x: Tensor) -> OwnerWay:
        choice = self._choice
        return lambda seed, directly: choice.carry_out(kind, lambda _, seed: directly(seed), x, seed)

    def _kind(
        self,
        slices: OwnerSlices,
        x: Tensor,
        kind: Half,
        codec: Codec | None,
        make: Callable[[Schedule], SumWay],
    ) -> SumKind:
        """Return what is searched for and measured together: parts of these sizes, one way or the other."""
        sizes = [x.element_size() * n if codec is None else codec.nbytes(n) for n in slices.numels]
        on_hosts = [sum(sizes[rank] for rank in ranks) for ranks in slices.hosts]
        return SumKind(
            name=f"{kind} {slices.numels} {x.dtype} {codec}",
            task=owner_task(on_hosts, kind),
            device=x.device,
            without_s=partial(direct_s, on_hosts, kind),
            make=make,
        )


def _as_it_is(slices: OwnerSlices, like: Tensor, kind: Half, schedule: Schedule) -> SumWay:
    """Return what moves parts without a codec along half of a schedule; it needs no seed."""
    half = place_half(schedule, kind, slices.numels, slices.hosts)
    starts = half.starts(slices.starts)
    by_schedule = ScheduledAllReduce(
        half.schedule, half.merged, half.collective, half.numels, slices.flat, like=like, starts=starts
    )
    return lambda x, _: by_schedule.stages(x)


def _coded(slices: OwnerSlices, device: torch.device, codec: Codec, schedule: Schedule) -> SumWay:
    half = place_half(schedule, "reduce", slices.numels, slices.hosts, codec.granularity)
    return ScheduledCodedSum(half, slices.starts, codec, slices.flat, device=device).stages
