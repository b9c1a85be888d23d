"""Topologies that cannot be emulated, and those that ask for too much."""

from dataclasses import replace

import pytest

from pliant.network import emulate_cluster, feasible
from pliant.network.feasible import asked_bytes_per_s, require_possible, too_much
from pliant.network.namespaces import CannotEmulateError
from pliant.network.shaped_link import require_congestion
from pliant.spec import Host, Link, Topology
from pliant.spec.worlds import WORLDS, world

AB = (Host(name="a"), Host(name="b"))


def link(source="a", target="b", bytes_per_s=1e6, **figures):
    return Link(
        source=source, target=target, bytes_per_s=bytes_per_s, latency_s=figures.pop("latency_s", 0.0), **figures
    )


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology(hosts=tuple(Host(name=str(k)) for k in range(300))), "300 hosts, but at most 250"),
        (Topology(hosts=AB, links=(link(bytes_per_s=9.0),)), r"a to b has 72bit, .* at least 8kbit \(--scale"),
        (Topology(hosts=(Host(name="a", send_bytes_per_s=9.0),)), "a out has 72bit"),
        (Topology(hosts=AB, links=(link(bytes_per_s=1e9, latency_s=0.5),)), "330251 packets on their way, but at most"),
        (  # whose rate the hosts alone limit
            Topology(hosts=(AB[0], Host(name="b", receive_bytes_per_s=1e9)), links=(link(bytes_per_s=0, latency_s=1),)),
            "a to b has 8gbit and 1s, and so 660502 packets",
        ),
        (
            Topology(hosts=(AB[0], Host(name="b", receive_bytes_per_s=1e9, delay_s=0.5))),
            "b in has 8gbit and 500ms, and so 330251 packets on their way, but at most 100000",
        ),
        (
            Topology(hosts=(*(Host(name=name, send_bytes_per_s=5e8) for name in "ac"), Host(name="b", delay_s=0.5))),
            "b in has 8gbit and 500ms, and so 330251 packets",
        ),
    ],
)
def test_what_no_machine_can_emulate_is_refused(topology, words):
    with pytest.raises(ValueError, match=words), emulate_cluster(topology):
        pass


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_can_be_emulated_at_a_scale(name):
    require_possible(world(name, 0.0001 if name == "islands" else 0.05))


def test_a_delay_that_no_packet_or_no_known_rate_has_is_not_refused():
    late = Host(name="b", receive_bytes_per_s=1e9, delay_s=0.5)
    require_possible(Topology(hosts=(AB[0], late), links=(link(bytes_per_s=1e6),)))  # which has a delay of its own
    require_possible(Topology(hosts=(AB[0], replace(late, receive_bytes_per_s=0.0))))


def test_rates_add_up_as_far_as_they_limit():
    capped = tuple(Host(name=name, send_bytes_per_s=4e6, receive_bytes_per_s=1e6) for name in "abc")
    assert asked_bytes_per_s(Topology(hosts=capped)) == 3e6  # who sends more has nobody to receive it
    assert asked_bytes_per_s(Topology(hosts=(*capped, Host(name="d")))) == 12e6  # without limit: left out
    both = (link(bytes_per_s=2e6), link("b", "a", bytes_per_s=3e6))
    assert asked_bytes_per_s(Topology(hosts=AB, links=both)) == 5e6
    assert asked_bytes_per_s(Topology(hosts=AB, links=both[:1])) == 2e6


def test_who_asks_for_more_than_the_machine_carries_is_warned(monkeypatch):
    monkeypatch.setattr(feasible.os, "cpu_count", lambda: 2)
    assert too_much(world("lan", 0.5)) == ""
    assert "can send 4gbit at once, but 2 cores carry some 2gbit beside computing" in too_much(world("lan"))
    assert "(--scale 0.03)" in too_much(world("ten-regions"))


def test_a_congestion_control_that_is_not_there_is_named_beside_those_that_are():
    with pytest.raises(CannotEmulateError, match=r"'swift' is asked for, but this kernel has .*reno"):
        require_congestion("swift")
