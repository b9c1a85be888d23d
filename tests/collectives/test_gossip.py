"""Gossip: oracles with the whole matrix at hand, the mean, replicas, and every byte counted."""

import numpy as np
import pytest
import torch

from pliant.codecs import MinMax8, Natural, Qsgd, Sign, Ternary, TopK
from pliant.collectives import CodedNeighborAverage, NeighborAverage
from pliant.comm import RecordedComm, run_world
from pliant.spec import Graph

KINDS = ("ring", "complete", "exponential", "grid", "one_peer", "hypercube", "round_robin", "matching")
CPU = torch.device("cpu")
NUMEL = 301


def vector(rank):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))


def matrix(graph, step, size):
    rows = graph.mixing(step, size)
    return np.array([[row.get(j, 0.0) for j in range(size)] for row in rows])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_gossip_is_the_product_with_the_matrix(kind, size):
    graph = Graph(kind=kind)

    def body(place):
        comm, x = RecordedComm(place.comm), vector(place.rank)
        gossip = NeighborAverage(graph, NUMEL, comm, dtype=x.dtype, device=CPU)
        for step in range(20):
            gossip(x, step)
        return x, comm.sent_bytes

    results = run_world(size, body, timeout_s=30)
    wanted, sent = np.stack([vector(r).double().numpy() for r in range(size)]), 0
    for step in range(20):
        w = matrix(graph, step, size)
        wanted = w @ wanted
        sent += int((w > 0).sum() - size) * NUMEL * 4
    np.testing.assert_allclose(torch.stack([x for x, _ in results]).numpy(), wanted, atol=1e-5)
    assert sum(bytes_ for _, bytes_ in results) == sent


@pytest.mark.parametrize("codec", [MinMax8(), Qsgd(bits=4), Sign(), TopK(ratio=0.1)], ids=str)
@pytest.mark.parametrize(("kind", "size"), [("ring", 2), ("ring", 3), ("ring", 5), ("exponential", 8), ("grid", 4)])
def test_coded_gossip_keeps_the_mean_and_replicas_agree(codec, kind, size):
    def body(place):
        x = vector(place.rank)
        gossip = CodedNeighborAverage(codec, Graph(kind=kind), NUMEL, place.comm, gamma=0.2, device=CPU)
        replicas = {r: torch.zeros(NUMEL) for r in (place.rank, *gossip.sources)}
        for step in range(150):
            gossip.encode(x, replicas, 1000 * step)
            gossip.exchange(replicas)
            gossip.mix_replicas(x, replicas)
        return x, replicas

    results = run_world(size, body, timeout_s=60)
    for rank, (_, replicas) in enumerate(results):
        for other, replica in replicas.items():
            assert torch.equal(replica, results[other][1][other]), (rank, other)
    start = torch.stack([vector(r) for r in range(size)])
    end = torch.stack([x for x, _ in results])
    torch.testing.assert_close(end.mean(0), start.mean(0), atol=2e-4, rtol=0)
    assert (end - end.mean(0)).norm() < 0.25 * (start - start.mean(0)).norm()


@pytest.mark.parametrize("codec", [Qsgd(bits=4), Qsgd(bits=8), Ternary(), Natural()], ids=str)
def test_ranks_round_their_differences_independently(codec):
    """All ranks hold the same vector: the error of the mean of n replicas has an n-th of one's variance."""
    size, numel = 4, 8192
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0))

    def body(place):
        gossip = CodedNeighborAverage(codec, Graph(kind="complete"), numel, place.comm, gamma=0.2, device=CPU)
        replicas = {r: torch.zeros(numel) for r in range(size)}
        gossip.encode(x, replicas, 5)
        gossip.exchange(replicas)
        return torch.stack([replicas[r] - x for r in range(size)])  # (size, numel)

    for errors in run_world(size, body, timeout_s=20):
        ratio = float(size * errors.mean(0).square().mean() / errors.square().mean())
        assert 0.85 < ratio < 1.15  # it would be 4 if all drew the same random numbers


def test_coded_gossip_refuses_neighbours_that_change():
    def body(place):
        with pytest.raises(ValueError, match="needs the same neighbours in every step"):
            CodedNeighborAverage(Sign(), Graph(kind="hypercube"), NUMEL, place.comm, gamma=1.0, device=CPU)

    run_world(4, body)
