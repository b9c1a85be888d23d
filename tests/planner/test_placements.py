"""Owners on uneven hosts: the space reaches them with every codec, they balance links, and what is found is run."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import pliant
from models import new_ddp, train, weights
from pliant.layouts import joint_numel, place_parts
from pliant.planner import BASELINES, Gene, Genome, Quality, Space, search_predicted
from pliant.planner.placements import OwnerPlaces, balanced_owners, rank_bandwidths
from pliant.simulator import simulate, simulate_many
from pliant.simulator.models import equal_layers, vgg16
from pliant.spec import Host, Link, Placement, Topology, from_json, to_json

WORKLOADS = {"vgg16": vgg16(0.3), "one tensor": equal_layers("one", 6e7, 1, 0.1)}
OWNER = Genome(Gene("owner", {}), bucket_bytes=25 << 20, cut="auto")


def cluster(ups, downs=None, ranks=None, links=()):
    downs, ranks = downs or ups, ranks or [1] * len(ups)
    given_hosts = zip(ups, downs, ranks, strict=True)
    return Topology(
        hosts=tuple(
            Host(name=f"h{k}", num_ranks=m, send_bytes_per_s=up, receive_bytes_per_s=down)
            for k, (up, down, m) in enumerate(given_hosts)
        ),
        links=links,
    )


def held(workload, placement, size):
    numels = [tensor.numel for tensor in workload.tensors]
    together = [joint_numel(tensor.shape, placement.cut) for tensor in workload.tensors]
    found = np.zeros(size)
    for own in place_parts(numels, together, [4] * len(numels), placement, size):
        found += own.per_rank(own.numels, size)
    return found


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 12, 16, 31, 32, 48, 64])
def test_the_busiest_owner_has_hardly_more_than_its_part_whatever_the_space_proposes(name, size):
    rng = random.Random(size)
    ups = [1e8 * rng.choice((1, 1, 0.7, 0.4)) for _ in range(size)]
    places = OwnerPlaces(cluster(ups, [1e8] * size))
    for bandwidths, owners in (*places.tried, ((), tuple(range(size)))):
        found = held(WORKLOADS[name], Placement(bandwidths=bandwidths, owners=owners), size)
        wanted = np.array(bandwidths or np.bincount(owners, minlength=size) if bandwidths or owners else [1.0] * size)
        assert not found[wanted == 0].any()
        loads = found[wanted > 0] / wanted[wanted > 0]
        assert loads.max() <= 1.05 * loads.mean()


def slowest_s(shares, ups, downs, ranks):
    """The box of `balanced_owners`, host by host: time of gradients, and of weights."""
    size, first, then = sum(ranks), 0.0, 0.0
    for k, (up, down, m) in enumerate(zip(ups, downs, ranks, strict=True)):
        x = sum(shares[sum(ranks[:k]) : sum(ranks[: k + 1])])
        first = max(first, m * (1 - x) / up, (size - m) * x / down)
        then = max(then, (size - m) * x / up, m * (1 - x) / down)
    return first + then


rates = st.sampled_from((1.0, 2.0, 3.0, 5.0, 10.0))
hosts = st.lists(st.tuples(rates, rates, st.integers(1, 3)), min_size=2, max_size=5)


@given(hosts, st.integers(0, 1000))
@settings(max_examples=40)
def test_no_other_owners_are_much_better_by_the_formula(given_hosts, seed):
    rng = random.Random(seed)
    ups, downs, ranks = zip(*given_hosts, strict=True)
    size, owners = sum(ranks), balanced_owners(cluster(ups, downs, ranks))
    found = slowest_s(
        np.bincount(owners or range(size), minlength=size) / len(owners or range(size)), ups, downs, ranks
    )
    for _ in range(100):
        other = np.array([rng.random() ** 3 for _ in range(len(ups))])
        other = np.repeat(other / ranks, ranks) / other.sum()
        assert found <= 1.15 * slowest_s(other, ups, downs, ranks)
    assert found <= 1.05 * slowest_s(np.full(size, 1 / size), ups, downs, ranks)


def test_a_slow_pair_counts_too():
    slow = tuple(Link(source=a, target=b, bytes_per_s=1e7, latency_s=0.0) for a, b in (("h0", "h1"), ("h1", "h0")))
    owners = balanced_owners(cluster([1e8] * 4, links=slow))
    turns = np.bincount(owners, minlength=4)
    assert turns[0] == turns[1] < turns[2] == turns[3]


@pytest.mark.parametrize(
    "topology",
    [
        cluster([1e8] * 4),
        cluster([0.0] * 4),
        cluster([1e8]),
        cluster([1e8, 1e8, 1e8, 1e7]),  # as slow both ways: equal parts
        cluster([1e8, 1e7] * 33, [1e8] * 66),
    ],
)
def test_where_equal_parts_are_right_or_ranks_are_many_no_owners_are_named(topology):
    assert balanced_owners(topology) == ()
    rng, space = random.Random(0), Space(WORKLOADS["one tensor"], topology, Quality(budget=1.5))
    assert not any(space.sample(rng).owners for _ in range(50))
    assert replace(OWNER, owners=(0,)) not in space


UNEVEN = cluster([1e8, 1e8, 2e7], [1e8] * 3)


def test_the_space_reaches_owners_by_name_and_by_bandwidth_with_every_codec():
    space, rng = Space(WORKLOADS["vgg16"], UNEVEN, Quality(budget=1.5)), random.Random(1)
    drawn = [space.sample(rng) for _ in range(1500)]
    owned = [genes for genes in drawn if genes.base.exchange.has_owners]
    assert all(genes in space and from_json(Genome, to_json(genes)) == genes for genes in owned)
    assert {(bool(g.bandwidths), bool(g.owners)) for g in owned} == {(False, False), (True, False), (False, True)}
    codecs = {str(genes.base.exchange.codec) for genes in owned if genes.owners}
    assert {"None", "bf16", "minmax8", "qsgd(bits=4)"} <= codecs
    start = next(genes for genes in owned if genes.owners)
    mutants = {space.mutate(start, rng) for _ in range(300)}
    assert any(m.owners and m.owners != start.owners and m.base == start.base for m in mutants)
    assert any(not m.owners and m.base == start.base for m in mutants)
    assert {space.cross(start, BASELINES["zero-owner"], rng).owners for _ in range(60)} >= {(), start.owners}
    assert replace(OWNER, owners=(0, 3)) not in space  # there is no rank 3
    assert replace(OWNER, owners=(0,), bandwidths=rank_bandwidths(UNEVEN)) not in space
    assert Genome(Gene("exact", {"bits": 32}), owners=(0,)) == Genome(Gene("exact", {"bits": 32}))
    assert "owners 1x0 2x1" in replace(OWNER, owners=(0, 1, 1)).summary
    assert "owners 0 1" in replace(OWNER, owners=(0, 1)).summary


@pytest.mark.parametrize("name", WORKLOADS)
def test_named_owners_are_simulated_to_be_faster_where_a_host_sends_slower_than_it_receives(name):
    owners, workload = balanced_owners(UNEVEN), WORKLOADS[name]
    named, equal = (simulate(replace(OWNER, owners=each).plan(), workload, UNEVEN).step_s for each in (owners, ()))
    assert named < 0.9 * equal

    def step_s(plans):
        return simulate_many([genes.plan() for genes in plans], workload, UNEVEN).tolist()

    space = Space(workload, UNEVEN, Quality())
    found = search_predicted(space, step_s, {"owner": OWNER}, 150, 0)
    assert found[0][1] <= named


@pytest.mark.parametrize("codec", ["", "bf16", "qsgd(bits=4)"])
def test_what_the_search_proposes_runs_in_the_engine(codec):
    space, rng = Space(WORKLOADS["vgg16"], UNEVEN, Quality(budget=1.5)), random.Random(5)

    def is_wanted(genes):
        node = genes.base.exchange
        return genes.owners and node.has_owners and str(node.codec or "") == codec and not genes.layers

    plan = next(filter(is_wanted, (space.sample(rng) for _ in range(3000)))).plan("found")

    def body(place):
        ddp, plain = new_ddp(place), new_ddp(place)
        kinds = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (ddp, plain)]
        with pliant.relax(ddp, kinds[0], plan, timeout_s=20) as run:
            losses = train(ddp, kinds[0], place.rank, range(6))
            assert run.plan.hash == plan.hash
        expected = train(plain, kinds[1], place.rank, range(6))
        return weights(ddp), weights(plain), losses, expected

    found = pliant.run_world(3, body)
    for own, exact, losses, expected in found:
        assert torch.equal(own, found[0][0])
        if not codec:
            torch.testing.assert_close(own, exact)
        assert losses == pytest.approx(expected, rel=0.3)
