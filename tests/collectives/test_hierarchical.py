"""Averages over two levels: the true mean over ranks, and at most twice the vector on any link inside a host."""

import itertools

import pytest
import torch

from pliant import run_world
from pliant.collectives import HierarchicalAverage
from pliant.comm import RecordedComm, hierarchical_comm
from pliant.layouts.host_slices import parts_by_rank, slice_ranges

HOSTS = [
    [[0, 1], [2, 3]],
    [[0], [1, 2, 3]],
    [[0, 1, 2], [3]],
    [[0, 1, 2, 3]],
    [[3, 1], [2, 0]],
    [[0], [1], [2]],
    [[0, 1, 2, 3, 4], [5]],
    [[5, 0, 2, 3, 1, 6], [7, 4]],
]
WHOLE = 840
"""A length of which all slices and pieces of up to eight ranks are whole."""


def exact(x, outer):
    outer.all_reduce(x).wait()
    x.div_(outer.size)


def test_all_elements_are_added_up_once_and_nobody_moves_more_than_two_vectors():
    for size in range(1, 9):
        for slices, numel in itertools.product(range(1, size + 1), (0, 1, 5, WHOLE)):
            parts = parts_by_rank(numel, slices, size)
            assert len(parts) == size
            found = sorted(k for part in parts for start, stop in part for k in range(start, stop))
            assert found == list(range(numel)), (size, slices, numel)
            for owner, (start, stop) in enumerate(slice_ranges(numel, slices)):
                for part in parts[slices:]:
                    assert all(start <= a <= b <= stop for a, b in part[owner : owner + 1])


def averaged(place, hosts, numel, num_slices, dtype):
    """Return the mean by an exact average between hosts, and the bytes that this rank sent and received inside."""
    levels = hierarchical_comm(RecordedComm(place.comm), hosts)
    average = HierarchicalAverage(numel, levels, num_slices)
    x = torch.arange(numel, dtype=dtype) + 100 * place.rank
    average(x, exact)
    moved = levels.inner.sent_bytes, levels.inner.received_bytes
    average(x, exact)  # of equal vectors; buffers are used again
    levels.close()
    return x, moved


@pytest.mark.parametrize("sliced", [True, False], ids=["slices", "one slice"])
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_it_is_the_true_mean_and_no_link_inside_carries_more_than_two_vectors(hosts, sliced):
    size, smallest = sum(map(len, hosts)), min(map(len, hosts))
    num_slices = smallest if sliced else 1

    for numel, dtype in itertools.product((WHOLE, 3, 0), (torch.float64, torch.float32)):
        wanted = torch.arange(numel, dtype=dtype) + 100 * (size - 1) / 2
        results = run_world(size, lambda place, n=numel, d=dtype: averaged(place, hosts, n, num_slices, d))
        for x, _ in results:
            torch.testing.assert_close(x, wanted, rtol=1e-14 if dtype == torch.float64 else 1e-6, atol=0)
            assert torch.equal(x, results[0][0])
        if numel == WHOLE:
            most = max(max(moved) for _, moved in results)
            assert most <= 2 * numel * dtype.itemsize
            if sliced and len(set(map(len, hosts))) == 1:
                n = len(hosts[0])
                assert most == 2 * (n - 1) * numel * dtype.itemsize // n


def test_what_is_kept_comes_home_once():
    def body(place):
        levels = hierarchical_comm(place.comm, [[0, 1, 2], [3, 4, 5, 6]])
        average = HierarchicalAverage(10, levels, 3)
        if levels.inner.rank == 3:
            return torch.zeros(10), average.mine
        kept = torch.arange(10.0) * 10**levels.inner.rank
        for _ in range(2):
            average.bring_home(kept)
        return kept, average.mine

    results = run_world(7, body)
    for host in ([0, 1, 2], [3, 4, 5, 6]):
        assert torch.equal(torch.stack([results[r][0] for r in host]).sum(0), torch.arange(10.0) * 111)
    for kept, (start, stop) in results:
        assert not kept[:start].any()
        assert not kept[stop:].any()
