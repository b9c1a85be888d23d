"""Ok-Topk: balanced regions, thresholds that are reused, and the top-k of the sum."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pliant.algorithms.base import State, StateSpec, StepContext
from pliant.buckets import Bucket
from pliant.comm.base import Comm
from pliant.spec import Custom
from pliant_bench.baselines.residuals import add_residual, count_of
from pliant_bench.baselines.streams import gather_all, kth_largest, route

__all__ = ["OkTopk", "rebalance"]

_PACE = 1.012
_TRIGGER = 4
"""A rank that selects so many times its share has others send for it."""


@dataclass(kw_only=True)
class _Known:
    """Buffers that are reused over steps; made anew with the buckets, and so after a resume."""

    local: float | None = None
    """The k-th largest |v| of this rank."""
    overall: float | None = None
    """The k-th largest |sum|."""
    bounds: list[int] = field(default_factory=list[int])
    """Where regions begin, and the end; (size + 1)."""

    def follow(self, more_here: int, more_in_all: int, *, finite: bool) -> None:
        """Move thresholds towards k, and drop those that an overflow has made worthless; the sum's is every rank's."""
        if self.local is not None:
            self.local = self.local * _threshold_factor(more_here) if finite else None
        if self.overall is not None:
            self.overall = self.overall * _threshold_factor(more_in_all) if math.isfinite(self.overall) else None


@dataclass(frozen=True, kw_only=True)
class OkTopk:
    """Send what reaches a threshold to the owner of its region; all get what of the sums reaches another.

    Li and Hoefler, Ok-Topk (PPoPP'22, arXiv:2201.07598), Algorithms 1 and 2:

        v <- v + g;  I = {|v| >= th};  owner of a region: s = sum of v at I;  J = {|s| >= Th}
        g <- s at J / n;  v <- 0 at I and J, so that what the second choice left out stays with its ranks

    th and Th are those of the k-th largest, taken exactly every `threshold_every` steps; between, they are reused, and
    rise or fall by 1.2 % where more or fewer than k reached them. In the first `threshold_every` steps, in which
    residuals only begin to gather, they are always exact: the paper's are dense then. Regions are those that would
    have given each rank equally many, on the mean, every `region_every` steps. Where a rank has
    selected 4 times its share, the selected are first evened out over ranks. With exact thresholds: bytes of at most
    8 k (n-1)/n in the split, twice 8 k/n (n-1) for evening out and gathering, and lengths.
    """

    ratio: float = 0.01
    threshold_every: float = 32
    region_every: float = 64

    @property
    def node(self) -> Custom:
        """An algorithm of its own name."""
        every = {"threshold_every": self.threshold_every, "region_every": self.region_every}
        return Custom(name="oktopk", settings={"ratio": self.ratio, **every})

    def slots(self, shape: tuple[int, ...], comm: Comm) -> StateSpec:
        """Return the slot of the residual."""
        return {"residual": None}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Return what is reused over steps."""
        return _Known()

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, context: StepContext) -> None:
        """Choose, sum by regions, choose again, gather, keep the rest."""
        known: _Known = state.workspace
        k = count_of(self.ratio, bucket.numel)
        held, finite = add_residual(bucket.flat, state.flat["residual"])
        exact = context.step < self.threshold_every or context.step % self.threshold_every == 0
        if known.local is None or exact:
            known.local = kth_largest(held, k)
        chosen = _reaching(held, known.local)
        if not known.bounds or context.step % self.region_every == 0:
            known.bounds = _balance(chosen, bucket.numel, comm)
        cuts = torch.searchsorted(chosen, torch.tensor(known.bounds, device=chosen.device)).tolist()
        pairs = _pairs(chosen, held[chosen])  # (2, num)
        bucket.flat.zero_()
        mine = bucket.flat[known.bounds[comm.rank] : known.bounds[comm.rank + 1]]
        for part in route([pairs[:, a:b].flatten() for a, b in pairwise(cuts)], comm):
            places, values = part.view(2, -1)
            mine[places.long() - known.bounds[comm.rank]] += values.view(torch.float32)
        if known.overall is None or exact:
            sums = mine[mine != 0].view(torch.int32)
            known.overall = kth_largest(torch.cat(gather_all(sums, comm)).view(torch.float32), k)
        selected = _reaching(mine, known.overall)
        own = _pairs(selected + known.bounds[comm.rank], mine[selected])
        places, values = torch.cat(rebalance(own, comm), 1)
        bucket.flat.zero_()
        bucket.flat[places.long()] = values.view(torch.float32) / comm.size
        known.follow(chosen.numel() - k, places.numel() - k, finite=finite)
        if finite:
            arrived = torch.zeros(bucket.numel, dtype=torch.bool, device=held.device)
            arrived[places.long()] = True
            held[chosen[arrived[chosen]]] = 0


def _threshold_factor(more: int) -> float:
    """Return the factor of a threshold that so many more than k have reached."""
    return _PACE if more > 0 else 1 / _PACE if more < 0 else 1.0


def _reaching(x: Tensor, threshold: float) -> Tensor:
    """Return the places whose |x| reaches a threshold, and those of NaN; zeros are never worth sending."""
    return ((x != 0) & ~(x.abs() < threshold)).nonzero().flatten()


def _pairs(places: Tensor, values: Tensor) -> Tensor:
    """Return places and values as int32 words, (2, num)."""
    return torch.stack([places.to(torch.int32), values.view(torch.int32)])


def _balance(chosen: Tensor, numel: int, comm: Comm) -> list[int]:
    """Return bounds of regions, (size + 1): the mean over ranks of those that would cut their own choice evenly."""
    at = [chosen.numel() * j // comm.size for j in range(1, comm.size)]
    inner = chosen[at] if chosen.numel() else torch.zeros(comm.size - 1, dtype=torch.int64, device=chosen.device)
    if inner.numel():
        comm.all_reduce(inner).wait()
    return [0, *(inner // comm.size).tolist(), numel]


def rebalance(own: Tensor, comm: Comm) -> list[Tensor]:
    """Return the int32 columns, (2, num), of every rank, in the order of ranks.

    An all-gather; where one rank has 4 times the mean or more, each first hands on what makes all equally long.
    """
    lengths = torch.empty(comm.size, dtype=torch.int32, device=own.device)
    comm.all_gather(lengths, torch.tensor([own.shape[1]], dtype=torch.int32, device=own.device)).wait()
    nums = [int(num) for num in lengths.tolist()]
    total = sum(nums)
    if max(nums) * comm.size >= _TRIGGER * total > 0 and comm.size > 1:
        own = _pass_on(own, nums, comm)
        nums = [total * (j + 1) // comm.size - total * j // comm.size for j in range(comm.size)]
    received = [torch.empty(2, num, dtype=torch.int32, device=own.device) for num in nums]
    received[comm.rank] = own.contiguous()
    others = [(comm.rank + hop) % comm.size for hop in range(1, comm.size)]
    sends = [(rank, received[comm.rank]) for rank in others if nums[comm.rank]]
    receives = [(rank, received[rank]) for rank in reversed(others) if nums[rank]]
    if sends or receives:
        comm.exchange(sends, receives).wait()
    return received


def _pass_on(own: Tensor, nums: list[int], comm: Comm) -> Tensor:
    """Return this rank's even part, (2, num), of what all hold one after another; the lengths are known to all."""
    total, size = sum(nums), comm.size
    held = [sum(nums[:j]) for j in range(size + 1)]
    due = [total * j // size for j in range(size + 1)]

    def shared(source: int, target: int) -> tuple[int, int]:
        return max(held[source], due[target]), min(held[source + 1], due[target + 1])

    sends: list[tuple[int, Tensor]] = []
    for target in range(size):
        first, last = (at - held[comm.rank] for at in shared(comm.rank, target))
        if first < last and target != comm.rank:
            sends.append((target, own[:, first:last].contiguous()))
    pieces: list[Tensor] = []
    receives: list[tuple[int, Tensor]] = []
    for source in range(size):
        first, last = shared(source, comm.rank)
        if first < last and source == comm.rank:
            pieces.append(own[:, first - held[source] : last - held[source]])
        elif first < last:
            pieces.append(torch.empty(2, last - first, dtype=torch.int32, device=own.device))
            receives.append((source, pieces[-1]))
    if sends or receives:
        comm.exchange(sends, receives).wait()
    return torch.cat(pieces, 1) if pieces else own[:, :0]
