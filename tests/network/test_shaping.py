"""Rates to command lines, without root."""

from dataclasses import replace

import pytest

from pliant.cli.emulate import topology_from_flags
from pliant.network.host_shape import HostShape, Outgoing, host_shapes
from pliant.network.link_check import LinkReport, link_faults, require_links
from pliant.network.link_flows import expected_bytes_per_s
from pliant.network.shaping import burst_bytes, gso_bytes, htb_lines, netem_command, queue_bytes, tbf_command
from pliant.spec import Host, Link, Topology


def test_buckets_and_queues_follow_the_rate():
    assert burst_bytes(12.5e6) == 128_000  # 100 Mbit/s: the floor
    assert burst_bytes(125e6) == 250_000  # 1 Gbit/s: 2 ms
    assert burst_bytes(1.25e9) == 1_250_000  # the ceiling
    assert queue_bytes(12.5e6) == 625_000
    assert queue_bytes(1e3) == 256_000
    assert queue_bytes(12.5e6, round_trip_s=0.1) == 1_250_000  # a round trip, where that is longer than 50 ms
    assert "1250000b" in tbf_command("eth0", 12.5e6, round_trip_s=0.1)
    assert tbf_command("eth0", 0.0) == []
    command = tbf_command("eth0", 12.5e6)
    assert command[:6] == ["tc", "qdisc", "replace", "dev", "eth0", "root"]
    assert "100000000bit" in command


def test_a_piece_takes_five_milliseconds_of_the_slowest_rate():
    plain = HostShape(send_bytes_per_s=0.0, receive_bytes_per_s=0.0, delay_s=0.0, round_trip_s=0.0)
    slow = Outgoing(target=1, bytes_per_s=1.25e6, round_trip_s=0.0)
    free = Outgoing(target=2, bytes_per_s=0.0, round_trip_s=0.0)
    assert gso_bytes(plain) == 65_536  # no limit: as the kernel has it
    assert gso_bytes(replace(plain, send_bytes_per_s=2.5e6)) == 12_500
    assert gso_bytes(replace(plain, send_bytes_per_s=2.5e6, outgoing=(slow, free))) == 6_250
    assert gso_bytes(replace(plain, send_bytes_per_s=1e3)) == 3_000  # two frames


def test_a_shaper_goes_behind_a_delay():
    assert netem_command("port0", 0.005)[-4:] == ["delay", "5000us", "limit", "100000"]
    assert netem_command("port0", 0.005)[6:9] == ["handle", "1:", "netem"]
    behind = tbf_command("port0", 12.5e6, behind_delay=True)
    assert behind[5:10] == ["parent", "1:1", "handle", "2:", "tbf"]


def test_slow_hosts_get_their_share():
    topology = topology_from_flags(3, "100mbit", "5ms", ["2:0.5"], 2, 0.0)
    assert [h.send_bytes_per_s for h in topology.hosts] == [12.5e6, 12.5e6, 6.25e6]
    assert topology.num_ranks == 6
    for slow in ("3:0.5", "x:1", "1", "1:0", "1:-2"):
        with pytest.raises(ValueError, match=r"must name a host, 0\.\.2"):
            topology_from_flags(3, "100mbit", "0ms", [slow], 1, 0.0)
    with pytest.raises(ValueError, match="--rate is none"):
        topology_from_flags(3, "none", "0ms", ["1:0.5"], 1, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        topology_from_flags(0, "none", "0ms", [], 1, 0.0)


PAIRS = Topology(
    hosts=(Host(name="a", send_bytes_per_s=12.5e6), Host(name="b", delay_s=0.02), Host(name="c", delay_s=0.01)),
    links=(
        Link(source="a", target="c", bytes_per_s=1.25e6, latency_s=0.1, jitter_s=0.005, loss=0.01),
        Link(source="a", target="b", bytes_per_s=0.0, latency_s=0.0),
    ),
)


def test_a_topology_becomes_what_each_host_shapes():
    a, b, c = host_shapes(PAIRS)
    assert a.outgoing == (
        Outgoing(target=1, bytes_per_s=0.0, round_trip_s=0.0),
        Outgoing(target=2, bytes_per_s=1.25e6, round_trip_s=0.1),
    )
    assert (a.incoming, a.delay_s, a.is_late) == ((), 0.0, False)
    assert [(i.source, i.delay_s, i.jitter_s, i.loss) for i in c.incoming] == [(0, 0.1, 0.005, 0.01)]
    assert (c.delay_s, c.round_trip_s, c.is_late) == (0.01, 0.1, True)  # from b by its own delay, from a by the link's
    assert (b.delay_s, b.round_trip_s) == (0.02, 0.03)


def classes(lines):
    """Return assured rate and limit, in bit/s, of each class."""
    words = [line.split() for line in lines if line.startswith("class")]
    return {
        w[w.index("classid") + 1]: tuple(int(w[w.index(k) + 1].removesuffix("bit")) for k in ("rate", "ceil"))
        for w in words
    }


def test_each_pair_has_a_class_and_their_assured_rates_add_up_to_the_hosts():
    lines = htb_lines("eth0", host_shapes(PAIRS)[0])
    found = classes(lines)
    assert found.pop("1:1") == (100_000_000, 100_000_000)
    assert {name: limit for name, (_, limit) in found.items()} == {
        "1:2": 100_000_000,  # the switch, and hosts without a link of their own
        "1:11": 100_000_000,
        "1:12": 10_000_000,
    }
    assert sum(assured for assured, _ in found.values()) <= 100_000_001
    assert "qdisc replace dev eth0 parent 1:12 handle 12: bfifo limit 256000b" in lines
    assert sum("u32 match ip dst 10.77.0.3/32 flowid 1:12" in line for line in lines) == 1
    again = htb_lines("eth0", host_shapes(PAIRS)[0], fresh=False)
    assert set(again) < set(lines)
    assert all(line.split()[1] == "replace" for line in again)  # nothing is torn down


def test_without_a_rate_of_the_host_pairs_are_assured_their_own():
    out = Outgoing(target=3, bytes_per_s=1.25e7, round_trip_s=0.2)
    shape = HostShape(send_bytes_per_s=0.0, receive_bytes_per_s=0.0, delay_s=0.0, round_trip_s=0.2, outgoing=(out,))
    lines = htb_lines("eth0", shape)
    assert classes(lines)["1:13"] == (100_000_000, 100_000_000)
    assert "1:1" not in classes(lines)
    assert "qdisc replace dev eth0 parent 1:13 handle 13: bfifo limit 2500000b" in lines  # a round trip of the rate


def link(wanted, found, trip=0.0, found_trip=0.0, connections=1):
    return LinkReport(
        source="a",
        target="b",
        wanted_bytes_per_s=wanted,
        found_bytes_per_s=found,
        wanted_round_trip_s=trip,
        found_round_trip_s=found_trip,
        connections=connections,
    )


def test_links_are_judged():
    assert expected_bytes_per_s(0.0, 5.0) == expected_bytes_per_s(5.0, 9.0) == 5.0
    assert expected_bytes_per_s(0.0, 0.0) == 0.0
    assert link_faults([link(1e6, 0.9e6), link(0.0, 1.0), link(1e6, 1.1e6, 0.01, 0.011)]) == []
    slow, quick, late = link_faults([link(12.5e6, 5e6), link(0.0, 1.0, 0.01, 0.001), link(0.0, 1.0, 0.01, 0.03)])
    assert "carries 40mbit instead of 100mbit" in slow
    assert "answers in 1.0 ms instead of 10.0" in quick
    assert "answers in 30.0 ms instead of 10.0" in late


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (link(1.25e8, 2.6e7, 0.1, 0.1), "Each of the 1 connections had TCP's window"),
        (link(1.25e7, 5e6, 0.01, 0.05), "the machine may be busy"),
        (link(1e12, 5e6, 0.01, 0.01), r"ask for 8000gbit together, but .* lower the rates \(--scale\)"),
        (link(1.25e7, 5e6, 0.01, 0.01), "neither the machine nor TCP's window"),
    ],
)
def test_the_machine_is_blamed_only_where_round_trips_are_off_too(report, words):
    with pytest.raises(RuntimeError, match=words) as caught:
        require_links([report])
    assert ("may be busy" in str(caught.value)) == ("busy" in words)
