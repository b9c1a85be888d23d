"""Predicted times: by hand, beside the simulator's own, and never below the bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from pliant.netmodel import Links, Overheads, PointToPoint, overheads_of
from pliant.schedules.collective import Collective, merge_blocks
from pliant.schedules.cost import lower_bound_s, predict_cost
from pliant.schedules.dense import dense_candidates
from pliant.schedules.family import build_schedule, halving, mixed_radix
from pliant.schedules.owners import greedy_owners, one_owner, solve_owners, spread_owners
from pliant.schedules.refine import improve_owners
from pliant.schedules.select import ScheduleSelector, candidates
from pliant.spec import Host, Link, Topology
from schedules.cases import hosts, problems, racks, random_collective

FREE = Overheads(message_s=0.0, wire_factor=1.0, sharing=0.0, loopback_bytes_per_s=1e30, reduce_bytes_per_s=1e30)


def dense(num_ranks, block_bytes):
    return Collective.of([[True] * num_ranks] * num_ranks, block_bytes)


def test_dense_ones_by_hand():
    """4 hosts at 12.5 MB/s and 1 ms: 2 (n-1)/n N / rate, and a delay for each round."""
    topology, full = hosts([1] * 4), dense(4, 1_000_000)
    owners = spread_owners(full)
    assert sorted(owners) == [0, 1, 2, 3]
    wire_s = 2 * 3 * 1e6 / 12.5e6
    for shape, num_rounds in ((mixed_radix((4,)), 2), (mixed_radix((4,), (True,)), 6), (halving(4), 4)):
        found = predict_cost(build_schedule(full, owners, shape), full, topology, FREE)
        assert found.total_s == pytest.approx(wire_s + num_rounds * 1e-3)
        assert found.sent_bytes == (6_000_000,) * 4
    assert lower_bound_s(full, topology, FREE) == pytest.approx(wire_s + 2e-3)
    tree = predict_cost(build_schedule(full, one_owner(full, 0), halving(4)), full, topology, FREE)
    assert tree.total_s == pytest.approx(4 * 4e6 / 12.5e6 + 4e-3)


def test_overheads_by_hand():
    topology, full = hosts([2], rate=0.0, delay_s=0.0), dense(2, 3000)
    some = Overheads(message_s=1e-3, loopback_bytes_per_s=3e6, reduce_bytes_per_s=3e5)
    first, second = predict_cost(build_schedule(full, [0, 1], mixed_radix((2,))), full, topology, some).rounds
    assert (first.message_s, first.loopback_s, first.reduce_s) == (2e-3, 2e-3, 1e-2)
    assert (second.message_s, second.loopback_s, second.reduce_s) == (2e-3, 2e-3, 0)
    assert first.wire_s == first.latency_s == 0
    with pytest.raises(ValueError, match="for 2 ranks, but the topology has 3"):
        predict_cost(build_schedule(full, [0, 1], mixed_radix((2,))), full, hosts([3]))
    with pytest.raises(ValueError, match="rates and the wire's factor above 0"):
        Overheads(wire_factor=0.0)


def test_without_other_overheads_those_of_the_machines_count():
    """Everywhere: a family that is predicted with other costs than what it is held against would be chosen wrongly."""
    alike = hosts([1] * 4)
    topology = replace(alike, hosts=tuple(replace(host, machine="t4") for host in alike.hosts))
    full, known = dense(4, 1_000_000), overheads_of(topology)
    assert known != Overheads()
    assert lower_bound_s(full, topology) == lower_bound_s(full, topology, known)
    for found in (candidates, lambda *given: dense_candidates(4_000_000, *given[1:])):
        given = merge_blocks(full), topology
        assert found(*given) == found(*given, known)
        assert found(*given) != found(*given, Overheads())
    for solver in (ScheduleSelector(topology), ScheduleSelector(topology, known)):
        assert solver.overheads == known


def test_flows_that_share_an_interface_by_hand():
    """Direct over 4 hosts: 3 flows in and out of each; over a ring and in pairs there is one."""
    topology, full = hosts([1] * 4, delay_s=0.0), dense(4, 1_000_000)
    owners, some = spread_owners(full), replace(FREE, sharing=0.3)
    wire_s = 2 * 3 * 1e6 / 12.5e6
    assert predict_cost(build_schedule(full, owners, mixed_radix((4,))), full, topology, some).total_s == pytest.approx(
        1.2 * wire_s
    )
    for shape in (mixed_radix((4,), (True,)), halving(4)):
        assert predict_cost(build_schedule(full, owners, shape), full, topology, some).total_s == pytest.approx(wire_s)
    with pytest.raises(ValueError, match="sharing are at least 0"):
        Overheads(sharing=-0.1)


@pytest.mark.parametrize("density", [0.0077, 0.05, 0.3])
def test_on_four_hosts_what_was_measured_fastest_is_preferred(density):
    """The blocks of benchmarks/results/sparse_sums_2core_2026-11-21.md, where `halving` is as fast or faster."""
    draw = np.random.default_rng([0, 0, round(1e6 * density)])
    held = np.zeros((4, 1024), dtype=bool)
    for row in held:
        row[draw.choice(1024, max(1, round(density * 1024)), replace=False)] = True
    merged = merge_blocks(Collective.of(held, 4096))
    topology = hosts([1] * 4, delay_s=0.0)
    assert candidates(merged, topology)[0].name.startswith("halving")
    assert candidates(merged, topology, Overheads(sharing=0.0))[0].name.startswith("direct")


def test_two_racks_reward_two_levels():
    """A slow interface that the ranks of a rack share: two levels send 1/4 of what direct sends over it."""
    topology, full = hosts([4, 4], rate=3e6), dense(8, 100_000)
    owners = spread_owners(full)
    direct, two = (predict_cost(build_schedule(full, owners, mixed_radix(r)), full, topology) for r in ((8,), (4, 2)))
    assert direct.total_s > 3.5 * two.total_s
    assert two.total_s < 1.17 * lower_bound_s(full, topology)


def test_racks_by_hand():
    """4 hosts in 2 racks, dense: direct sends 2/4 of 3/4 over each uplink twice, two levels half of what a rack has."""
    topology, full = racks([2, 2], uplink=3e6, rate=12e6, delay_s=0.0), dense(4, 600_000)
    owners = spread_owners(full)
    direct, two = (
        predict_cost(build_schedule(full, owners, mixed_radix(r)), full, topology, FREE) for r in ((4,), (2, 2))
    )
    # A rack's 2 hosts send each of the 2 owners elsewhere 0.6 MB: 2.4 MB at 3 MB/s; hosts alone need 1.8 MB / 12 MB/s.
    assert [r.wire_s for r in direct.rounds] == pytest.approx([0.8, 0.8])
    # In a rack 1.2 MB / 12 MB/s; then 2 hosts send 0.6 MB each.
    assert [r.wire_s for r in two.rounds] == pytest.approx([0.1, 0.4, 0.4, 0.1])
    assert lower_bound_s(full, topology, FREE) == pytest.approx(0.8)
    best = candidates(merge_blocks(full), topology, FREE)[0]
    assert best.name.startswith("halving")
    assert improve_owners(best, topology, FREE, limit_s=2).cost.total_s <= best.cost.total_s


@pytest.mark.parametrize("sizes", [[3, 5], [2, 3, 3]])
def test_uneven_racks_are_a_level(sizes):
    topology, some = racks(sizes, uplink=3e6), random_collective(8, 60, 0.3, 1)
    found = candidates(merge_blocks(some), topology)
    direct = next(each for each in found if each.name == "direct")
    assert found[0].name.startswith("racks.")
    assert direct.cost.total_s > 1.5 * found[0].cost.total_s


def test_owners_spare_a_slow_uplink():
    """What is held in one rack is summed there, though a host of the other one has as fast a link."""
    some = Collective.of([[rank in (1, 2)] * 12 for rank in range(4)], 10_000)
    assert 0 in greedy_owners(some, hosts([1] * 4)).owners
    for owners in (greedy_owners, solve_owners):
        assert 0 not in owners(some, racks([1, 3], uplink=1e6)).owners


@given(problems())
def test_rounds_cost_what_the_simulator_says(problem):
    collective, topology, shape, owners = problem
    names = [host.name for host in topology.hosts]
    if len(names) > 1:
        link = Link(source=names[0], target=names[1], bytes_per_s=3e5, latency_s=7e-3)
        topology = replace(topology, links=(link,))
    schedule = build_schedule(collective, owners, shape)
    found = predict_cost(schedule, collective, topology, FREE)
    for moves, ours in zip(schedule.rounds, found.rounds, strict=True):
        pairs = PointToPoint(
            source=np.array([m.source for m in moves]),
            target=np.array([m.target for m in moves]),
            share=np.array([float(collective.block_bytes[m.block]) for m in moves]),
            num_bytes=np.ones(1),
        )
        took = Links(topology, FREE).load(pairs)
        assert ours.wire_s == pytest.approx(took.wire_s[0])
        assert ours.latency_s == pytest.approx(took.latency_s[0])


@given(problems())
def test_sharing_is_felt_by_rounds_in_which_an_interface_has_several_flows(problem):
    collective, topology, shape, owners = problem
    schedule = build_schedule(collective, owners, shape)
    host_of = [k for k, host in enumerate(topology.hosts) for _ in range(host.num_ranks)]
    some = replace(FREE, sharing=0.3)
    alone, shared = (predict_cost(schedule, collective, topology, overheads).rounds for overheads in (FREE, some))
    for moves, without, with_it in zip(schedule.rounds, alone, shared, strict=True):
        pairs = [(host_of[a], host_of[b]) for a, b in {(m.source, m.target) for m in moves} if host_of[a] != host_of[b]]
        ends = [[ends.count(end) for end in ends] for ends in map(list, zip(*pairs, strict=True))]
        most = max((max(counts) for counts in ends), default=1)
        assert without.wire_s <= with_it.wire_s <= some.sharing_factor(most) * without.wire_s * (1 + 1e-9)
        assert most > 1 or with_it == without


@given(problems())
def test_nothing_is_below_the_bound(problem):
    collective, topology, shape, owners = problem
    for overheads in (Overheads(), FREE):
        found = predict_cost(build_schedule(collective, owners, shape), collective, topology, overheads)
        assert found.total_s >= lower_bound_s(collective, topology, overheads) * (1 - 1e-9)


@given(problems())
def test_greedy_owners_predict_what_direct_rounds_cost(problem):
    """One rank per host: the model of owners and the cost of the direct schedule are the same."""
    collective, topology, _, _ = problem
    alone = replace(topology, hosts=tuple(replace(host, num_ranks=1) for host in topology.hosts))
    num_ranks = alone.num_ranks
    collective = random_collective(num_ranks, 10, 0.3, collective.num_blocks)
    found = greedy_owners(collective, alone, FREE)
    shape = mixed_radix((num_ranks,) if num_ranks > 1 else ())
    rounds = predict_cost(build_schedule(collective, found.owners, shape), collective, alone, FREE).rounds
    assert sum(r.wire_s for r in rounds) == pytest.approx(found.predicted_s)


@given(problems())
def test_quick_owners_are_owners_and_about_as_good(problem):
    collective, topology, _, _ = problem
    good, quick = (greedy_owners(collective, topology, quick=hurry) for hurry in (False, True))
    assert all(0 <= owner < collective.num_ranks for owner in quick.owners)
    assert quick.predicted_s <= 1.5 * good.predicted_s
    assert quick == greedy_owners(collective, topology, quick=True), "alike on every rank"


def test_greedy_owners_spare_a_slow_host():
    slow = Topology(
        hosts=(
            Host(name="slow", send_bytes_per_s=1e8, receive_bytes_per_s=1e6),
            *(Host(name=f"h{k}", send_bytes_per_s=1e8, receive_bytes_per_s=1e8) for k in range(3)),
        )
    )
    full = Collective.of([[True] * 24] * 4, 1000)
    owners = greedy_owners(full, slow).owners
    assert owners.count(0) == 0
    assert {owners.count(rank) for rank in (1, 2, 3)} == {8}
    even = greedy_owners(full, hosts([1] * 4)).owners
    assert {even.count(rank) for rank in range(4)} == {6}


@settings(max_examples=6)
@given(problems(max_ranks=8))
def test_the_program_is_never_worse_than_greedy(problem):
    collective, topology, _, _ = problem
    for merged in (False, True):
        greedy = greedy_owners(collective, topology, merged=merged)
        found = solve_owners(collective, topology, merged=merged, limit_s=2)
        assert found.predicted_s <= greedy.predicted_s
        assert all(0 <= owner < collective.num_ranks for owner in found.owners)


def test_the_program_finds_the_optimum_of_a_small_one():
    """Against all assignments, one by one."""
    from itertools import product

    topology = hosts([1] * 3, rate=1000.0, delay_s=0.0)
    collective = random_collective(3, 3, 0.5, 5)
    shape = mixed_radix((3,))

    def wire_s(owners):
        return sum(
            r.wire_s for r in predict_cost(build_schedule(collective, owners, shape), collective, topology, FREE).rounds
        )

    best_s = min(wire_s(owners) for owners in product(range(3), repeat=collective.num_blocks))
    found = solve_owners(collective, topology, FREE, limit_s=10)
    assert wire_s(found.owners) == pytest.approx(found.predicted_s)
    assert found.predicted_s <= best_s * 1.002
