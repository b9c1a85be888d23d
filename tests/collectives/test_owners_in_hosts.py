"""Owner sums by way of the ranks of hosts: the sums of a flat exchange, and each part once on a host's link."""

import pytest
import torch

import pliant
from exchanges import owned_parts
from pliant.collectives import ReduceToOwners, SpreadFromOwners
from pliant.comm import hierarchical_comm
from pliant.comm.wrapped import WrappedComm
from pliant.layouts.aggregators import Aggregators

HOSTS = {
    "equal": [[0, 1], [2, 3], [4, 5]],
    "unequal": [[0], [1, 2, 3], [4, 5]],
    "mixed": [[3, 0, 4], [5, 1, 2]],
    "one": [[0, 1, 2]],
    "apart": [[0], [1], [2]],
}


class Counted(WrappedComm):
    """Counts the bytes that go from this rank to each other, but for those between ranks of a host, which are split."""

    def __init__(self, comm):
        super().__init__(comm)
        self.sent = [0] * comm.size

    def exchange(self, sends, receives, **settings):
        for peer, x in sends:
            self.sent[peer] += x.nbytes
        return super().exchange(sends, receives, **settings)


@pytest.mark.parametrize("shape", HOSTS)
def test_sums_are_those_of_a_flat_exchange_and_cross_a_host_link_once(shape):
    hosts, numel = HOSTS[shape], 700
    size = sum(map(len, hosts))
    parts = owned_parts(size, numel)
    held = [sum(b - a for owner, (a, b) in parts if owner == rank) for rank in range(size)]

    def body(place):
        counted = Counted(place.comm)
        levels = hierarchical_comm(counted, hosts)
        whole = torch.randint(-1000, 1000, (numel,), generator=torch.Generator().manual_seed(place.rank)).double()
        found = []
        for comm in (place.comm, levels):
            x = whole.clone()
            ReduceToOwners(parts, comm, like=x, codec=None)(x, 1)
            found.append(x)
        up, counted.sent = counted.sent, [0] * size
        back = SpreadFromOwners(held, levels, dtype=torch.float64, device=torch.device("cpu"))
        back.part(place.rank).fill_(place.rank)
        back()
        assert all((back.part(rank) == rank).all() for rank in range(size))
        return found, up, counted.sent

    results = pliant.run_world(size, body)
    norms = 8 * size * size  # of two parts at most, to each other rank
    for ranks in hosts:
        others = [rank for rank in range(size) if rank not in ranks]
        theirs, own = sum(held[rank] for rank in others), sum(held[rank] for rank in ranks)
        assert 0 <= sum(results[r][1][o] for r in ranks for o in others) - 8 * theirs <= 2 * norms * len(ranks)
        assert sum(results[r][2][o] for r in ranks for o in others) == 8 * own * (len(hosts) - 1)
        assert all(results[r][2][o] == 0 for r in ranks for o in ranks)  # these go by the comm of the host
    for (flat, over_hosts), _, _ in results:
        assert torch.equal(flat, over_hosts)


@pytest.mark.parametrize("shape", HOSTS)
def test_each_part_has_one_aggregator_on_each_host(shape):
    hosts = HOSTS[shape]
    for ranks in hosts:
        every = [Aggregators.of(hosts, rank) for rank in ranks]
        assert all(each.owners == every[0].owners for each in every)
        assert sorted(owner for held in every[0].owners for owner in held) == list(range(sum(map(len, hosts))))
        for rank, own in zip(ranks, every, strict=True):
            assert own.owners[own.place][0] == rank
            for other in own.elsewhere:
                theirs = Aggregators.of(hosts, other)
                assert rank in theirs.owners[theirs.place]
    loads = [len(Aggregators.of(hosts, ranks[0]).owners[place]) for ranks in hosts for place in range(len(ranks))]
    if shape == "equal":
        assert set(loads) == {len(hosts)}
