"""Rates to command lines, without root."""

import pytest

from pliant.cli.emulate import topology_from_flags
from pliant.network.link_check import LinkReport, expected_bytes_per_s, link_faults
from pliant.network.shaping import burst_bytes, netem_command, queue_bytes, tbf_command


def test_buckets_and_queues_follow_the_rate():
    assert burst_bytes(12.5e6) == 128_000  # 100 Mbit/s: the floor
    assert burst_bytes(125e6) == 250_000  # 1 Gbit/s: 2 ms
    assert burst_bytes(1.25e9) == 1_250_000  # the ceiling
    assert queue_bytes(12.5e6) == 625_000
    assert queue_bytes(1e3) == 256_000
    assert tbf_command("eth0", 0.0) == []
    command = tbf_command("eth0", 12.5e6)
    assert command[:6] == ["tc", "qdisc", "replace", "dev", "eth0", "root"]
    assert "100000000bit" in command


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


def link(wanted, found, trip=0.0, found_trip=0.0):
    return LinkReport(
        source="a",
        target="b",
        wanted_bytes_per_s=wanted,
        found_bytes_per_s=found,
        wanted_round_trip_s=trip,
        found_round_trip_s=found_trip,
    )


def test_links_are_judged():
    assert expected_bytes_per_s(0.0, 5.0) == expected_bytes_per_s(5.0, 9.0) == 5.0
    assert expected_bytes_per_s(0.0, 0.0) == 0.0
    assert link_faults([link(1e6, 0.9e6), link(0.0, 1.0), link(1e6, 1.1e6, 0.01, 0.011)]) == []
    slow, quick, late = link_faults([link(12.5e6, 5e6), link(0.0, 1.0, 0.01, 0.001), link(0.0, 1.0, 0.01, 0.03)])
    assert "carries 40 Mbit/s instead of 100" in slow
    assert "answers in 1.0 ms instead of 10.0" in quick
    assert "answers in 30.0 ms instead of 10.0" in late
