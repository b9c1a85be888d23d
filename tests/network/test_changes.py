"""Links that change at times that are known before."""

from dataclasses import replace

import pytest

from pliant.network import changes
from pliant.network.changes import Change, Timetable, parse_changes, with_links_of, without_limits
from pliant.spec import Host, Link, Rack, Topology
from waiting import made_up_clock

HOSTS = Topology(
    hosts=tuple(
        Host(name=name, send_bytes_per_s=1e6, receive_bytes_per_s=2e6, delay_s=0.003) for name in ("a", "b-2", "c")
    ),
    links=(Link(source="a", target="c", bytes_per_s=5e6, latency_s=0.02, jitter_s=0.001, loss=0.1),),
)


def link(topology, source, target):
    return next(x for x in topology.links if (x.source, x.target) == (source, target))


def test_a_change_of_a_pair_is_both_ways_and_keeps_what_it_does_not_name():
    (change,) = parse_changes(["at 60s: 0-2 10mbit"], HOSTS)
    assert change.at_s == 60
    assert link(change.topology, "a", "c") == Link(
        source="a", target="c", bytes_per_s=1.25e6, latency_s=0.02, jitter_s=0.001, loss=0.1
    )
    assert link(change.topology, "c", "a") == Link(source="c", target="a", bytes_per_s=1.25e6, latency_s=0.003)
    assert change.topology.hosts == HOSTS.hosts


def test_one_way_by_names_with_all_figures():
    (change,) = parse_changes(["at 1.5min: b-2>c none delay 50ms jitter 5ms loss 1%"], HOSTS)
    assert change.at_s == 90
    assert link(change.topology, "b-2", "c") == Link(
        source="b-2", target="c", bytes_per_s=0.0, latency_s=0.05, jitter_s=0.005, loss=0.01
    )
    assert len(change.topology.links) == 2
    (both,) = parse_changes(["at 0s: b-2-a loss 0.5"], HOSTS)
    assert {link(both.topology, "b-2", "a").loss, link(both.topology, "a", "b-2").loss} == {0.5}


def test_a_host_changes_and_changes_add_up_in_the_order_of_their_times():
    later, first = "at 9s: 1 delay 7ms", "at 8s: b-2 4mbit"
    one, two = parse_changes([later, first], HOSTS)
    assert (one.at_s, two.at_s) == (8, 9)
    assert one.topology.hosts[1] == Host(name="b-2", send_bytes_per_s=5e5, receive_bytes_per_s=5e5, delay_s=0.003)
    assert two.topology.hosts[1] == Host(name="b-2", send_bytes_per_s=5e5, receive_bytes_per_s=5e5, delay_s=0.007)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("60s: 0-1 1mbit", "is not understood; write it as 'at 60s"),
        ("at 60s 0-1 1mbit", "is not understood"),
        ("at soon: 0-1 1mbit", "'soon' is not a time"),
        ("at 60s: 0-3 1mbit", r"neither a host nor two of them, .* a, b-2, c, by number 0 to 2"),
        ("at 60s: 0-0 1mbit", "neither a host nor two of them"),
        ("at 60s: 0-1 fast", "'fast' is not a rate"),
        ("at 60s: 0-1 0mbit", "would cut a link off"),
        ("at 60s: 0-1 1mbit delay", "has '1mbit delay', which is not understood"),
        ("at 60s: 0-1 delay", "has 'delay', which is not understood"),
        ("at 60s: 0-1  ", "which is not understood"),
        ("at 60s: 0-1 1mbit speed 4", "has '1mbit speed 4', which is not understood"),
        ("at 60s: 0-1 loss 1% loss 2%", "which is not understood"),
        ("at 60s: 0-1 loss 100%", "loses 1 of its packets"),
        ("at 60s: 0 loss 1%", "gives a host loss, which only pairs have"),
    ],
)
def test_what_is_no_change_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse_changes([text], HOSTS)


def test_each_change_is_made_once_at_its_time(monkeypatch):
    clock = made_up_clock()
    monkeypatch.setattr(changes, "time", clock)
    made = []
    table = Timetable(parse_changes(["at 3s: 0-1 2mbit", "at 2s: 0-1 1mbit", "at 9s: 0 1mbit"], HOSTS), made.append)
    seen = []
    for _ in range(5):
        table.tick()
        seen.append(len(made))
        clock.sleep(1.0)
    assert seen == [0, 0, 1, 2, 2]
    assert [link(topology, "a", "b-2").bytes_per_s * 8e-6 for topology in made] == [1, 2]
    assert [change.at_s for change in table.left] == [9]
    with pytest.raises(ValueError, match="finite and at least 0"):
        Change(at_s=-1.0, topology=HOSTS)


def test_without_limits_every_host_rack_and_link_stays_and_none_is_held():
    rack = Rack(name="r", hosts=("a", "b-2", "c"), send_bytes_per_s=1e6)
    lossy = Link(source="a", target="b-2", bytes_per_s=1e6, latency_s=0.1, jitter_s=0.01, loss=0.01)
    topology = replace(HOSTS, links=(lossy,), racks=(rack,))
    opened = without_limits(topology)
    assert opened.links == (Link(source="a", target="b-2", bytes_per_s=0.0, latency_s=0.0),)
    assert opened.racks == (Rack(name="r", hosts=rack.hosts),)
    assert [h.name for h in opened.hosts] == [h.name for h in topology.hosts]
    assert all(h.send_bytes_per_s == h.receive_bytes_per_s == h.delay_s == 0.0 for h in opened.hosts)


def test_all_topologies_of_a_timetable_have_the_same_links():
    (change,) = parse_changes(["at 60s: 0-1 1mbit"], HOSTS)
    before = with_links_of(HOSTS, [change.topology])
    after = with_links_of(change.topology, [HOSTS])
    assert {(x.source, x.target) for x in before.links} == {(x.source, x.target) for x in after.links}
    assert link(before, "a", "b-2") == Link(source="a", target="b-2", bytes_per_s=0.0, latency_s=0.003)  # as without
    assert before.links[0] == HOSTS.links[0]
