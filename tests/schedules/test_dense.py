"""Schedules of dense sums: trees, orders of hosts, and what is chosen; by the verifier, an oracle and bounds."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from pliant.netmodel import IDEAL, Links, Overheads, overheads_of
from pliant.schedules import Collective, candidates, lower_bound_s, predict_cost, verify
from pliant.schedules.cost import times_s
from pliant.schedules.dense import SIZES, dense_candidates, dense_merged, fastest_schedule, owners_s, ring_s, size_at
from pliant.schedules.orders import host_orders, reordered
from pliant.schedules.owned import fastest_owner_schedule
from pliant.schedules.priced_trees import Prices
from pliant.schedules.trees import pack_trees
from pliant.spec import Host, Link, Move, Schedule, Topology
from pliant.spec.matrices import topology_of_matrices
from schedules.cases import hosts

NUM_BYTES = 1 << 22


def mesh(num_hosts, seed):
    """Pairs that all differ: rates over a factor of 100, delays of 1 to 20 ms."""
    rng, apart = np.random.default_rng(seed), 1 - np.eye(num_hosts)
    rates = 1e6 * 100 ** rng.random((num_hosts, num_hosts)) * apart
    return topology_of_matrices(rates.tolist(), (rng.uniform(1e-3, 20e-3, (num_hosts, num_hosts)) * apart).tolist())


def cost_of(schedule, topology, num_bytes=NUM_BYTES, overheads=None):
    return predict_cost(schedule, dense_merged(schedule, num_bytes).collective, topology, overheads).total_s


@pytest.mark.parametrize("hops", [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(("num_hosts", "seed"), [(2, 1), (3, 2), (5, 3), (6, 4)])
def test_trees_are_right_and_have_as_many_rounds_as_they_may(num_hosts, seed, hops):
    found = pack_trees(mesh(num_hosts, seed), hops=hops)
    verify(found, dense_merged(found, NUM_BYTES).collective)
    assert len(found.rounds) <= sum(hops)
    assert sum(found.shares) == pytest.approx(1)


@pytest.mark.parametrize("is_owned", [False, True])
@pytest.mark.parametrize(("num_hosts", "seed"), [(4, 1), (5, 2), (6, 3), (7, 4)])
def test_trees_made_beforehand_are_nearly_those_of_column_generation(num_hosts, seed, is_owned, monkeypatch):
    """The oracle begins with one tree of each root, and goes on as long as the program's prices ask for any."""
    rng, apart = np.random.default_rng(seed), 1 - np.eye(num_hosts)
    topology = topology_of_matrices(
        (1e6 * 100 ** rng.random((num_hosts, num_hosts)) * apart).tolist(), (0 * apart).tolist()
    )
    owned = [1 / num_hosts] * num_hosts if is_owned else None
    found = cost_of(pack_trees(topology, IDEAL, owned=owned), topology, overheads=IDEAL)
    monkeypatch.setattr("pliant.schedules.trees._TURNS", 1)
    monkeypatch.setattr("pliant.schedules.trees._LEAST_GAIN", -math.inf)
    best = cost_of(pack_trees(topology, IDEAL, owned=owned, limit_s=1e3), topology, overheads=IDEAL)
    assert found <= 1.02 * best


def test_trees_take_the_way_round_a_slow_pair():
    """One ordered pair of four at a hundredth: hardly a byte goes over it, and its host's two other ways suffice."""
    rates = 1e7 * (1 - np.eye(4))
    even = topology_of_matrices(rates.tolist(), np.zeros((4, 4)).tolist())
    rates[0, 1] /= 100
    slow = topology_of_matrices(rates.tolist(), np.zeros((4, 4)).tolist())
    found = pack_trees(slow, IDEAL)
    sent = sum(found.shares[m.block] for moves in found.rounds for m in moves if (m.source, m.target) == (0, 1))
    assert sent < 0.01
    direct = cost_of(pack_trees(even, IDEAL, hops=(1, 1)), even, overheads=IDEAL)
    assert cost_of(found, slow, overheads=IDEAL) < 1.4 * direct  # three ways' bytes go over two
    assert cost_of(pack_trees(slow, IDEAL, hops=(1, 1)), slow, overheads=IDEAL) > 1.4 * direct


def test_trees_of_two_hosts_use_both_ways_at_once():
    """Each part goes over the slower way once, as a partial sum or as the sum; the faster way takes no time beside."""
    rates = [[0.0, 4e6], [1e6, 0.0]]
    topology = topology_of_matrices(rates, [[0.0, 0.0], [0.0, 0.0]])
    found = pack_trees(topology, IDEAL)
    assert cost_of(found, topology, overheads=IDEAL) == pytest.approx(NUM_BYTES / 1e6, rel=0.02)
    merged = dense_merged(found, NUM_BYTES)
    assert lower_bound_s(merged.collective, topology, IDEAL) == pytest.approx(NUM_BYTES / 1e6, rel=0.02)


def test_trees_keep_to_links_with_little_delay():
    topology = mesh(5, 1)
    delays_s = sorted(link.latency_s for link in topology.links)
    allowed_s = delays_s[len(delays_s) * 3 // 4]
    found = pack_trees(topology, max_delay_s=allowed_s)
    late = {(link.source, link.target) for link in topology.links if link.latency_s > allowed_s}
    names = [host.name for host in topology.hosts]
    assert not late & {(names[m.source], names[m.target]) for moves in found.rounds for m in moves}
    assert pack_trees(topology, max_delay_s=delays_s[0] / 2) is None


def test_prices_of_trees_are_what_messages_are_predicted_to_take():
    """Over a link, two interfaces, and inside hosts of which one has a machine with a rate of its own."""
    fast, slow = (Host(name=name, num_ranks=2, send_bytes_per_s=1e7, machine=m) for name, m in (("a", "t4"), ("b", "")))
    topology = Topology(hosts=(fast, slow), links=(Link(source="a", target="b", bytes_per_s=1e6, latency_s=0.0),))
    overheads, num_bytes = overheads_of(Topology(hosts=(slow,))), 10**9
    prices = Prices(Links(topology, overheads), np.inf)
    for a, b in itertools.permutations(range(4), 2):
        one = ((Move(source=a, target=b, block=0, kind="reduce"),),)
        task = Collective(num_ranks=4, block_bytes=(num_bytes,), holders=((a,),), needers=((b,),))
        schedule = Schedule(name="one", num_ranks=4, num_blocks=1, rounds=one)
        (took,) = predict_cost(schedule, task, topology, overheads).rounds
        assert num_bytes * prices.load([(a, b)]).max() == pytest.approx(max(took.wire_s, took.loopback_s))


def test_there_are_no_trees_without_shares(monkeypatch):
    monkeypatch.setattr("pliant.schedules.trees._LEAST_SHARE", 1.1)
    assert pack_trees(mesh(3, 1)) is None


def test_trees_keep_to_links_without_a_limit_where_there_are_any():
    """Their first program has nothing to divide, and no time to minimize."""
    free = Topology(hosts=tuple(Host(name=name) for name in "abc"))
    one = replace(free, links=(Link(source="a", target="b", bytes_per_s=1e6, latency_s=0.0),))
    for topology in (free, one):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = pack_trees(topology)
        verify(found, dense_merged(found, NUM_BYTES).collective)
        limited = {(0, 1)} if topology.links else set()
        assert not limited & {(m.source, m.target) for moves in found.rounds for m in moves}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_order_of_ranks_is_faster_than_what_is_chosen(seed):
    """All orders of four hosts under all shapes of the family: the oracle of the chosen schedule."""
    topology = mesh(4, seed)
    even = Schedule(name="even", num_ranks=4, num_blocks=32, rounds=())
    merged = dense_merged(even, NUM_BYTES)
    every = min(
        candidates(merged, reordered(topology, order)[0])[0].cost.total_s for order in itertools.permutations(range(4))
    )
    best = dense_candidates(NUM_BYTES, topology)[0]
    assert best.cost.total_s <= every
    assert best.cost.total_s >= lower_bound_s(best.merged.collective, topology)


@pytest.mark.parametrize(("num_hosts", "seed"), [(4, 1), (6, 2)])
def test_all_candidates_are_right_in_the_given_ranks(num_hosts, seed):
    topology = mesh(num_hosts, seed)
    found = dense_candidates(NUM_BYTES, topology)
    assert [each.cost.total_s for each in found] == sorted(each.cost.total_s for each in found)
    for each in found:
        verify(each.schedule, each.merged.collective)
        assert each.cost.total_s == pytest.approx(cost_of(each.schedule, topology))


def test_orders_put_fast_links_side_by_side():
    """A ring of fast links hidden among slow ones: both ways of looking for an order find it."""
    for num in (6, 9):
        hidden = np.random.default_rng(num).permutation(num)
        rates = np.full((num, num), 1e6) * (1 - np.eye(num))
        delays_s = np.full((num, num), 0.02) * (1 - np.eye(num))
        for a, b in zip(hidden, np.roll(hidden, -1), strict=True):
            rates[a, b], delays_s[a, b] = 1e8, 0.001
        orders = host_orders(topology_of_matrices(rates.tolist(), delays_s.tolist()))
        assert orders[0] == tuple(range(num))
        at = hidden.tolist().index(0)
        assert tuple(np.roll(hidden, -at).tolist()) in orders


def test_hosts_alike_have_the_given_order_alone():
    assert host_orders(hosts([1] * 5)) == [tuple(range(5))]


def test_a_ring_goes_to_the_rank_before():
    """Gloo's all-reduce does, as was measured; so a slow link up costs it nothing."""
    rates = 1e7 * (1 - np.eye(4))
    rates[0, 1] = 1e5
    up = topology_of_matrices(rates.tolist(), np.zeros((4, 4)).tolist())
    even = replace(up, links=tuple(replace(link, bytes_per_s=1e7) for link in up.links))
    assert ring_s(NUM_BYTES, up) == pytest.approx(ring_s(NUM_BYTES, even))
    rates = rates.T
    assert ring_s(NUM_BYTES, topology_of_matrices(rates.tolist(), np.zeros((4, 4)).tolist())) > 10 * ring_s(
        NUM_BYTES, even
    )


def test_equal_hosts_keep_torchs_ring_for_large_vectors_unless_something_is_faster():
    topology: Topology = hosts([1] * 4)
    found = fastest_schedule(1 << 26, topology)
    assert found is None or cost_of(found, topology, 1 << 26) < ring_s(1 << 26, topology)
    assert fastest_schedule(1 << 20, hosts([1])) is None


@pytest.mark.parametrize("pause_s", [0.0, 2.0])
def test_many_sizes_are_predicted_as_one_is(pause_s):
    """But for bytes that blocks of whole bytes have more or less."""
    topology, costs = mesh(4, 5), Overheads(pause_s=pause_s)
    for each in dense_candidates(1 << 20, topology):
        sizes = np.array([1 << 12, 1 << 20, 1 << 26])
        expected_s = [cost_of(each.schedule, topology, size, costs) for size in sizes.tolist()]
        assert times_s(each.schedule, each.schedule.parts, sizes, topology, costs) == pytest.approx(
            expected_s, rel=1e-3
        )


@pytest.mark.parametrize("is_coded", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_chosen_for_a_size_is_near_the_best_for_it(seed, is_coded):
    topology = mesh(4, seed)
    for num_bytes in (300, 40_000, 3_000_000, 1 << 28):
        best_s = dense_candidates(num_bytes, topology)[0].cost.total_s
        without_s = (owners_s if is_coded else ring_s)(num_bytes, topology)
        found = fastest_schedule(num_bytes, topology, is_coded=is_coded)
        took_s = without_s if found is None else cost_of(found, topology, num_bytes)
        assert took_s <= 1.02 * min(best_s, without_s)


def test_sizes_are_rounded_to_a_fifth_and_end():
    assert [SIZES[size_at(size)] for size in (0.5, 1, 1.05, 1024, 1100, 1 << 50)] == [1, 1, 1, 1024, 1024, 1 << 32]
    assert fastest_schedule(0, mesh(3, 1)) is None


@pytest.mark.parametrize("num_bytes", [1 << 12, 1 << 16, 1 << 24])
def test_what_is_held_against_the_plain_way_has_the_same_overheads(num_bytes):
    """Where hosts name a machine, its costs are those of the ring, and of straight messages, and of the schedules."""
    topology = hosts([2] * 4)
    topology = replace(topology, hosts=tuple(replace(host, machine="t4") for host in topology.hosts))
    known, parts = overheads_of(topology), (num_bytes // 8,) * 8
    assert fastest_schedule(num_bytes, topology) == fastest_schedule(num_bytes, topology, known)
    assert fastest_owner_schedule(parts, parts, topology) == fastest_owner_schedule(parts, parts, topology, known)


def test_cuts_follow_the_shares_and_cover_the_vector():
    even = Schedule(name="even", num_ranks=2, num_blocks=3, rounds=())
    assert even.cuts(9) == (0, 3, 6, 9)
    uneven = replace(even, shares=(0.5, 0.0, 0.5))
    assert uneven.cuts(7) == (0, 4, 4, 7)
    assert replace(even, num_blocks=0).cuts(5) == (0,)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.6, 0.1), (1.5, -0.5, 0.0)])
def test_shares_that_are_not_those_of_the_blocks_are_refused(shares):
    moves = ((Move(source=0, target=1, block=0, kind="reduce"),),)
    with pytest.raises(ValueError, match="schedule 'bad' has 3 blocks"):
        Schedule(name="bad", num_ranks=2, num_blocks=3, rounds=moves, shares=shares)
