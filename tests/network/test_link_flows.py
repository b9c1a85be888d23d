"""Between whom links are checked, and who at the same time."""

from dataclasses import replace

import pytest

from pliant.network import link_flows
from pliant.network.link_flows import flow_groups, num_connections, uplink_flows
from pliant.spec import Host, Link, Rack, Topology
from pliant.spec.worlds import WORLDS, world


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Set what the machine carries to that of two cores, since groups depend on it."""
    monkeypatch.setattr(link_flows, "carried_bytes_per_s", lambda: 2.5e8)


@pytest.mark.parametrize(
    ("rate", "delay_s", "wanted"),
    [("100mbit", 0.05, 2), ("1gbit", 0.05, 13), ("300mbit", 0.125, 10), ("10mbit", 0.0, 1), ("10gbit", 0.2, 32)],
)
def test_so_many_connections_fill_a_link(rate, delay_s, wanted):
    bytes_per_s = {"10mbit": 1.25e6, "100mbit": 1.25e7, "300mbit": 3.75e7, "1gbit": 1.25e8, "10gbit": 1.25e9}[rate]
    assert num_connections(bytes_per_s, 2 * delay_s) == wanted


def test_equal_hosts_are_checked_in_a_ring_all_at_once():
    hosts = tuple(Host(name=str(k), send_bytes_per_s=1.25e8, receive_bytes_per_s=5e7, delay_s=0.01) for k in range(4))
    (ring,) = flow_groups(Topology(hosts=hosts))
    assert [(flow.source, flow.target) for flow in ring] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert {(flow.bytes_per_s, flow.round_trip_s, flow.connections) for flow in ring} == {(5e7, 0.02, 1)}
    assert flow_groups(Topology(hosts=hosts[:1])) == []


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("scale", [1.0, 0.03])
def test_each_link_is_checked_once_and_no_group_asks_for_more_than_there_is(name, scale):
    topology = world(name, scale)
    groups = flow_groups(topology)
    ends = [(flow.source, flow.target) for flows in groups for flow in flows]
    assert len(set(ends)) == len(ends)
    names = [host.name for host in topology.hosts]
    assert {(link.source, link.target) for link in topology.links} <= {(names[a], names[b]) for a, b in ends}
    for flows in groups[1:]:
        for k, host in enumerate(topology.hosts):
            for limit, own in (
                (host.send_bytes_per_s, [flow.bytes_per_s for flow in flows if flow.source == k]),
                (host.receive_bytes_per_s, [flow.bytes_per_s for flow in flows if flow.target == k]),
            ):
                assert not limit or sum(own) <= limit * 1.001
        assert len(flows) == 1 or sum(flow.bytes_per_s for flow in flows) <= 2.5e8 * 1.001


def test_a_flow_has_the_least_rate_and_the_delays_of_its_links():
    hosts = (Host(name="a", send_bytes_per_s=9e6), Host(name="b", receive_bytes_per_s=8e6, delay_s=0.02))
    link = Link(source="b", target="a", bytes_per_s=5e6, latency_s=0.1, jitter_s=0.01)
    ((there, back),) = flow_groups(Topology(hosts=hosts, links=(link,)))
    assert (there.bytes_per_s, there.round_trip_s, there.jitter_s) == (8e6, pytest.approx(0.12), 0.01)
    assert (back.bytes_per_s, back.round_trip_s, back.jitter_s) == (5e6, pytest.approx(0.12), 0.01)


def test_links_without_a_rate_are_checked_together_since_only_their_delays_are_judged():
    hosts = tuple(Host(name=name) for name in "abcd")
    links = tuple(Link(source=a, target=b, bytes_per_s=0.0, latency_s=0.01) for a in "abcd" for b in "abcd" if a != b)
    assert [len(flows) for flows in flow_groups(Topology(hosts=hosts, links=links))] == [4, 8]


def test_uplinks_are_filled_by_flows_of_their_own_hosts():
    found = uplink_flows(world("islands", 0.0001))
    assert [[(flow.source, flow.target) for flow in flows] for flows in found] == [
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        [(4, 0), (5, 1), (6, 2), (7, 3)],
    ]
    hosts = tuple(Host(name=name, send_bytes_per_s=1e6) for name in "ab")
    one = Topology(hosts=hosts, racks=(Rack(name="r", hosts=("a", "b")),))
    assert uplink_flows(one) == []
    assert uplink_flows(replace(one, racks=())) == []
