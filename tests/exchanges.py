"""The rows of laws over collectives: each makes a function of a vector, over any comm, on any device."""

import itertools
import threading
from functools import cache

import torch

from pliant import codecs as c, sharded_optimizer
from pliant.algorithms.executors.owner_ways import owner_ways
from pliant.collectives import (
    CastAllReduce,
    CodedNeighborAverage,
    CompressedAverage,
    HierarchicalAverage,
    LowRankAverage,
    NeighborAverage,
    ReduceToOwners,
    SharedSparseAverage,
    ShortVectorAverage,
    SparseAverage,
    SpreadFromOwners,
)
from pliant.collectives.halves import FromOwners, ToOwners
from pliant.collectives.owner_slices import hosts_of
from pliant.collectives.pairwise import gather_parts, mean_of_parts
from pliant.collectives.pieces import cut_evenly, pieces_of
from pliant.collectives.scratch import Scratch
from pliant.comm import hierarchical_comm
from pliant.schedules import Collective, ScheduledAllReduce, build_schedule, candidates, merge_blocks, shapes
from pliant.schedules.coded import ScheduledCodedAverage
from pliant.schedules.dense import dense_merged
from pliant.schedules.trees import pack_trees
from pliant.spec import Graph, Schedule
from schedules.cases import hosts
from schedules.test_dense import mesh
from tables import CODECS

__all__ = ["COLLECTIVES", "NUMEL", "owned_parts"]

NUMEL = 5000
DENSE = [codec for codec in CODECS if not isinstance(codec, (c.TopK, c.BlockTopK, c.RandomK, c.Dct))]
"""Codecs that carry all elements; the bits of `Dct` depend on how torch divides a matrix product among threads."""


def compressed(codec):
    def make(comm, device):
        average = CompressedAverage(codec, NUMEL, comm, chunk_bytes=1 << 11, owner_feedback=True, device=device)
        residual = torch.zeros(NUMEL, device=device)
        return lambda x: average(x, 1, residual)

    return make


def uneven_parts(comm, granularity):
    """Return the pieces of a vector of which rank 0 owns nothing."""
    return [[], *(pieces_of(p, 1 << 11, granularity) for p in cut_evenly(NUMEL, comm.size - 1, granularity))]


def to_owners(codec, *, stands=False):
    """Make the reduce-scatter by itself."""

    def make(comm, device):
        parts, residual = uneven_parts(comm, codec.granularity), torch.zeros(NUMEL, device=device)
        half = ToOwners(codec, parts, comm, device, stands=stands)

        def step(x):
            posted = half.send(x, residual, comm.rank + 1)
            for k, piece in enumerate(parts[comm.rank]):
                half.add(k, posted, piece.of(x))
                half.stand(k)
            half.wait(posted)

        return step

    return make


def from_owners(codec, *, stands=False):
    """Make the all-gather by itself."""

    def make(comm, device):
        parts = uneven_parts(comm, codec.granularity)
        half = FromOwners(codec, parts, comm, device, stands=stands)

        def step(x):
            half.swap(x, 1)
            for rank, pieces in enumerate(parts):
                for k in range(len(pieces)):
                    half.decode_piece(rank, k, x)
            for k in range(half.num_rounds):
                half.stand(k)

        return step

    return make


def exact_halves(comm, device):
    cuts, scratch = [piece.of for piece in cut_evenly(NUMEL, comm.size, 1)], Scratch(device)

    def step(x):
        parts = [cut(x) for cut in cuts]
        out = parts[comm.rank].clone()
        mean_of_parts(parts, out, comm, scratch)
        parts[comm.rank].copy_(out)
        gather_parts(parts, comm)

    return step


def owned_parts(size, numel):
    """Return uneven parts, of which the last rank owns nothing, and rank 0 two ranges."""
    ends = [0, *sorted((k * k * numel // size**2) for k in range(1, size)), numel]
    owners = [*range(size - 1), 0]
    return [(owner, (a, b)) for owner, a, b in zip(owners, ends, ends[1:], strict=False)]


def owners(codec, ways_over=lambda comm: None):
    def make(comm, device):
        each = NUMEL // 8  # more than ranks, or some ranks own nothing
        parts = [(k % 4 % comm.size, (k * each, (k + 1) * each)) for k in range(8)]
        like = torch.zeros(NUMEL, device=device)
        total = ReduceToOwners(parts, comm, like=like, codec=codec, ways=ways_over(comm))
        return lambda x: total(x, 1)

    return make


def owners_over_hosts(codec, ways_over=lambda comm: None, hosts_of=lambda size: [[0], list(range(1, size))]):
    """Make the sum at owners by way of the ranks of hosts, and the way back."""

    def make(comm, device):
        levels = hierarchical_comm(comm, hosts_of(comm.size))
        total = owners(codec, ways_over)(levels, device)
        numels = [3 * rank for rank in range(comm.size)]
        back = SpreadFromOwners(numels, levels, dtype=torch.float32, device=device, ways=ways_over(levels))

        def step(x):
            total(x)
            back.part(comm.rank).copy_(x[: numels[comm.rank]])
            back()

        return step

    return make


def by_relays(comm):
    """Return ways to owners and back through trees, over ranks or hosts whose pairs differ."""
    with _searching:
        schedule = _relays(len(hosts_of(comm)))
    return owner_ways(sharded_optimizer(schedule=schedule), comm)


_searching = threading.Lock()
"""Held by the rank that searches: ranks are threads, which would all do so, and find different trees."""


@cache
def _relays(places):
    """Return trees over so many ranks or hosts; found once, as a busy machine may end another search earlier."""
    return pack_trees(mesh(places, 1), owned=[1 / places] * places)


def low_rank(comm, device):
    average, factors = LowRankAverage({"w": (50, 100)}, 2, comm, device), {"w": torch.zeros(2, 100, device=device)}
    return lambda x: average(x, torch.zeros(NUMEL, device=device), factors)


def coded_neighbours(comm, device):
    average = CodedNeighborAverage(c.MinMax8(), Graph(kind="ring"), NUMEL, comm, gamma=0.5, device=device)
    replicas = {j: torch.zeros(NUMEL, device=device) for j in [comm.rank, *average.sources]}

    def step(x):
        average.encode(x, replicas, 1)
        average.exchange(replicas)
        average.mix_replicas(x, replicas)

    return step


def between_hosts(hosts_of):
    """Make an average over hosts: three communicators on some ranks."""

    def make(comm, device):
        levels = hierarchical_comm(comm, hosts_of(comm.size))
        average = HierarchicalAverage(NUMEL, levels, levels.num_places)

        def between(x, outer):
            CompressedAverage(c.Int4(), len(x), outer, chunk_bytes=1 << 12, owner_feedback=False, device=device)(x, 1)

        return lambda x: average(x, between)

    return make


def sparse(comm, device):
    average = SparseAverage(c.TopK(ratio=0.01), NUMEL, comm, device)

    def step(x):
        out = torch.empty(NUMEL, device=device)
        average(out, x, 1)
        x.copy_(out)

    return step


def shared_sparse(comm, device):
    average, residual = (
        SharedSparseAverage(c.RandomK(ratio=0.1), NUMEL, comm, device),
        torch.zeros(NUMEL, device=device),
    )
    return lambda x: average(x, 3, residual)


def neighbours(graph):
    def make(comm, device):
        average, steps = NeighborAverage(graph, NUMEL, comm, dtype=torch.float32, device=device), itertools.count()
        return lambda x: [average(x, next(steps)) for _ in range(3)]

    return make


def scheduled(comm, device):
    """Every shape of schedule, over blocks that all hold."""
    collective = Collective.of([[True] * 20] * comm.size, [NUMEL // 20 * 4] * 20)
    grouped = merge_blocks(collective)
    owners = [k % comm.size for k in range(grouped.collective.num_blocks)]
    topology = hosts([1] * comm.size)
    built = [build_schedule(grouped.collective, owners, shape) for shape in shapes(topology)]
    sums = [
        ScheduledAllReduce(each, grouped, collective, [NUMEL // 20] * 20, comm, like=torch.zeros(NUMEL, device=device))
        for each in built
    ]
    return lambda x: [total(x.div_(comm.size)) for total in sums]


def scheduled_codes(comm, device):
    """Every fast schedule of the family, in codes."""
    even = Schedule(name="even", num_ranks=comm.size, num_blocks=2 * comm.size, rounds=())
    found = candidates(dense_merged(even, 4 * NUMEL), hosts([1] * comm.size))
    sums = [
        ScheduledCodedAverage(each.schedule, c.Int4(), NUMEL, comm, owner_feedback=True, device=device)
        for each in found[:3]
    ]
    residual = torch.zeros(NUMEL, device=device)
    return lambda x: [mean(x, 1, residual) for mean in sums]


COLLECTIVES = {
    **{f"compressed, {codec}": compressed(codec) for codec in DENSE},
    **{f"to owners, {codec}": to_owners(codec) for codec in (c.Int4(), c.Sign())},
    **{f"from owners, {codec}": from_owners(codec) for codec in (c.Int4(), c.MinMax8())},
    "to owners, standing": to_owners(c.Int4(), stands=True),
    "from owners, standing": from_owners(c.Int4(), stands=True),
    "exact halves": exact_halves,
    "owners": owners(None),
    "owners, coded": owners(c.Qsgd(bits=8)),
    "owners over hosts": owners_over_hosts(None),
    "owners over hosts, coded": owners_over_hosts(c.Qsgd(bits=8)),
    "cast": lambda comm, device: CastAllReduce(torch.bfloat16, NUMEL, comm, device),
    "short": lambda comm, device: ShortVectorAverage(NUMEL, comm, device),
    "short in parts": lambda comm, device: ShortVectorAverage(NUMEL, comm, device, in_parts=True),
    "sparse": sparse,
    "shared sparse": shared_sparse,
    "low rank": low_rank,
    "ring of neighbours": neighbours(Graph(kind="ring")),
    "pairs of neighbours": neighbours(Graph(kind="matching")),
    "coded neighbours": coded_neighbours,
    "between hosts": between_hosts(lambda size: [[0], list(range(1, size))]),
    "between hosts in slices": between_hosts(lambda size: [list(range(size // 2)), list(range(size // 2, size))]),
    "a schedule": scheduled,
    "a schedule to owners": owners(None, by_relays),
    "a schedule to owners in codes": owners(c.Qsgd(bits=8), by_relays),
    "a schedule to owners over hosts": owners_over_hosts(None, by_relays),
    "a schedule to owners in codes over hosts": owners_over_hosts(c.Qsgd(bits=8), by_relays),
    "a schedule to owners and back": owners_over_hosts(None, by_relays, lambda size: [[k] for k in range(size)]),
    "a schedule in codes": scheduled_codes,
}
