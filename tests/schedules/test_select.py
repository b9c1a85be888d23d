"""Choosing: the fastest by prediction, again for what was there before, another one only where it pays."""

import pytest
from hypothesis import given, settings, strategies as st

from pliant.netmodel import Overheads
from pliant.schedules import (
    Collective,
    ScheduleSelector,
    SelectorOptions,
    candidates,
    lower_bound_s,
    merge_blocks,
    predict_cost,
    verify,
)
from pliant.spec import Host, Topology
from schedules.cases import DENSITIES, hosts, random_collective, topologies_of


@settings(max_examples=8)
@given(num_ranks=st.integers(1, 8), density=st.sampled_from(DENSITIES), seed=st.integers(0, 99))
def test_all_candidates_are_right_and_in_order(num_ranks, density, seed):
    collective = random_collective(num_ranks, 20, density, seed)
    for topology in topologies_of(num_ranks).values():
        merged = merge_blocks(collective)
        found = candidates(merged, topology)
        times = [each.cost.total_s for each in found]
        assert times == sorted(times)
        assert times[0] >= lower_bound_s(collective, topology) * (1 - 1e-9)
        for each in found:
            verify(each.schedule, merged.collective)
            assert predict_cost(each.schedule, merged.collective, topology) == each.cost
        names = {each.name for each in found}
        assert {"direct", "tree"} <= names
        assert candidates(merged, topology) == found, "alike on every rank"


@pytest.mark.parametrize(
    ("rates", "root"),
    [([1e6, 3e6, 2e6], 1), ([1e6, 3e6, 0], 2), ([2e6, 2e6, 1e6], 0)],
    ids=["rates", "no limit", "tie"],
)
def test_a_tree_has_its_root_where_the_slower_direction_is_the_fastest(rates, root):
    topology = Topology(
        hosts=tuple(
            Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=2 * rate) for k, rate in enumerate(rates)
        )
    )
    found = candidates(merge_blocks(random_collective(3, 20, 0.5, 0)), topology)
    (tree,) = [each for each in found if each.rule.owners == "one"]
    owners = tree.rule.owners_of(tree.merged.collective, topology, Overheads())
    assert set(owners) == {root}


def test_what_pays_depends_on_the_network():
    dense = merge_blocks(Collective.of([[True] * 64] * 8, 65536))
    small = merge_blocks(Collective.of([[True] * 64] * 8, 4))
    racks = hosts([4, 4], rate=3e6)
    assert candidates(dense, racks)[0].name.split(" ")[0] in ("4d.2d", "halving", "4r.2d")
    far = hosts([1] * 8, rate=125e6, delay_s=20e-3)
    assert len(candidates(small, far)[0].schedule.rounds) == 2, "a long way to go: as few rounds as possible"
    # Many messages at once cost more than some rounds more.
    assert candidates(small, hosts([1] * 8, delay_s=0.0), Overheads(message_s=0.01))[0].name in ("tree", "halving")


def test_what_was_there_before_is_not_planned_again():
    selector = ScheduleSelector(hosts([1] * 4))
    one, other = (random_collective(4, 30, 0.2, seed) for seed in (1, 2))
    first = selector.choose(one)
    assert selector.choose(one) is first
    selector.choose(other)
    assert selector.choose(one) is first
    assert selector.num_searches == 1
    verify(first.best.schedule, first.best.merged.collective)
    assert first.bound_s == lower_bound_s(one, selector.topology)


def test_another_recipe_only_where_it_pays():
    """From what one message holds to what takes a second: rounds matter first, and then bytes."""
    topology = hosts([4, 4], rate=3e6, delay_s=20e-3)
    tiny, large = (Collective.of([[True] * 64] * 8, size) for size in (4, 1 << 16))
    best = candidates(merge_blocks(large), topology)[0]
    at_once = ScheduleSelector(topology, options=SelectorOptions(period=1))
    before = at_once.choose(tiny).best
    assert before.name != best.name
    assert at_once.choose(large).best.name == best.name
    never = ScheduleSelector(topology, options=SelectorOptions(period=1, gain=0.99))
    never.choose(tiny)
    assert never.choose(large).best.name == before.name
    later = ScheduleSelector(topology, options=SelectorOptions(period=3))
    later.choose(tiny)
    assert later.choose(large).best.name == before.name, "carried on until it is time to look"
    later.choose(Collective.of([[True] * 64] * 8, (1 << 16) + 4))
    assert later.choose(Collective.of([[True] * 64] * 8, (1 << 16) + 8)).best.name == best.name
    assert later.num_searches == 2


def test_refusals():
    with pytest.raises(ValueError, match="over 3 ranks, but the topology has 4"):
        candidates(merge_blocks(random_collective(3, 5, 0.5, 0)), hosts([2, 2]))
    with pytest.raises(ValueError, match="a gain of 1"):
        SelectorOptions(gain=1)


def test_unlimited_and_single():
    alone = Topology(hosts=(Host(name="a"),))
    found = ScheduleSelector(alone).choose(Collective.of([[True, False]], 4))
    assert found.best.schedule.rounds == ()
    assert found.bound_s == 0
    nobody = ScheduleSelector(hosts([1, 1])).choose(Collective.of([[False], [False]], 4))
    assert nobody.best.schedule.rounds == ()
