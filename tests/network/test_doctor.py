"""`pliant doctor`: rates by connections, clocks, facts, and what is said of them."""

import itertools
import json
import random
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

import pliant
from cli.inside import run
from pliant.cli.doctor.command import examine
from pliant.cli.doctor.tcp import tcp_findings
from pliant.cli.doctor.verdict import findings, prospects, sentence
from pliant.netmodel import Overheads, slow_start_s
from pliant.network.connections import ConnectionRates, measure_by_connections
from pliant.network.parallel_streams import settled_throughput
from pliant.network.rank_facts import clock_offsets, local_facts
from pliant.spec import Host, Link, Topology, from_json, save

PLIANT = [sys.executable, "-m", "pliant"]


def made_up_stream(chance, rate, waits_s=0.0):
    """Arrivals of a second and more, of which some are looked at late."""
    size, start_s = int(rate / 64), chance.uniform(0, 0.1)
    came_s = [start_s + (k + 1) * size / rate for k in range(70)]
    begins_s = chance.uniform(start_s, start_s + 1.0)
    looked_s = [max(at, begins_s + waits_s) if at >= begins_s else at for at in came_s]
    return [(start_s, 0), *((at + 1e-6 * k, size * (k + 1)) for k, at in enumerate(looked_s))]


def test_a_stream_has_its_rate_and_bursts_at_the_start_do_not_count():
    chance = random.Random(0)
    for rate in (chance.uniform(0.5e6, 2e6) for _ in range(100)):
        assert settled_throughput(made_up_stream(chance, rate)) == pytest.approx(rate, rel=0.03)
    burst = [(0.0, 0), (0.001, 500_000), *((0.01 * k, 500_000 + 10_000 * k) for k in range(1, 100))]
    assert settled_throughput(burst) == pytest.approx(1e6, rel=0.03)


def test_who_has_to_wait_for_a_core_finds_about_what_a_stream_carries():
    chance, found = random.Random(0), []
    for _ in range(300):
        rate = chance.uniform(0.5e6, 2e6)
        found.append(settled_throughput(made_up_stream(chance, rate, chance.uniform(0, 0.2))) / rate)
    assert max(found) < 1.35
    assert statistics.median(found) == pytest.approx(1.0, rel=0.1)


def test_clocks_that_differ_are_found_within_what_a_round_trip_allows():
    shifts = [0.0, 5.0, -0.25]

    def body(place):
        count = itertools.count()
        return clock_offsets(place.comm, lambda: next(count) * 1e-6 + shifts[place.rank])

    for found in pliant.run_world(3, body):
        for (offset_s, error_s), shift in zip(found, shifts, strict=True):
            assert abs(offset_s - shift) < 1e-3
            assert error_s < 1e-3


@pytest.mark.extended
def test_each_pair_is_measured_over_one_connection_and_over_several():
    def body(place):
        with pytest.raises(ValueError, match="ask for at least 2"):
            measure_by_connections(place.comm, num_connections=1)
        return measure_by_connections(place.comm, num_connections=2, budget_s=5.0, hosts=[[0, 1], [2], [3]])

    found = pliant.run_world(4, body)
    assert all(each == found[0] for each in found)
    first_two = [{("host1", "host2"), ("host2", "host1")}, {("host0", "host2"), ("host2", "host0")}]
    assert {(r.source, r.target) for r in found[0]} == set.union(*first_two)  # what the budget has room for
    assert all(r.one_bytes_per_s > 1e6 and r.several_bytes_per_s > 1e6 for r in found[0])


def test_all_ranks_come_to_one_checkup():
    found = pliant.run_world(2, lambda place: examine(place.comm, budget_s=4.0, hosts=[[0], [1]]))
    assert found[0] == found[1]
    one = found[0]
    assert [facts.rank for facts in one.facts] == [0, 1]
    assert one.facts[0].num_cores >= 1
    assert one.facts[0].operations_per_s > 1e6
    assert "gloo" in one.facts[0].backends
    assert {p.workload for p in one.prospects} == {"resnet50", "vgg16", "gpt2", "lstm"}
    assert len(one.connections) == 2
    assert not [line for line in one.findings if "differ in" in line or "clock" in line]


def test_one_machine_says_what_it_has_and_how_to_go_on(tmp_path):
    done = run("doctor", "--budget", "1s", "--json", tmp_path / "doctor.json")
    assert done.returncode == 0, done.stderr
    assert "This is one machine" in done.stdout
    assert "-m pliant doctor" in done.stdout
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["connections"] == written["prospects"] == []
    assert len(written["facts"]) == len(written["topology"]["hosts"]) == 1
    for budget in ("0s", "61s"):
        assert "at most 60s" in run("doctor", "--budget", budget).stderr


def cluster(mbit, delay_s=0.0, links=()):
    rate = mbit * 1e6 / 8
    hosts = [Host(name=n, send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay_s) for n in "abcd"]
    return Topology(hosts=tuple(hosts), links=tuple(links))


@pytest.mark.parametrize(("mbit", "word"), [(100, "Sooner at the same accuracy: "), (400_000, "stay with DDP")])
def test_what_would_help_depends_on_the_links(mbit, word):
    fast = Overheads(message_s=1e-6, loopback_bytes_per_s=1e12)
    found = {p.workload: p for p in prospects(cluster(mbit), fast, 20e12)}
    assert word in sentence(found["resnet50"])
    assert "by-hosts" not in found["resnet50"].sooner  # each host has one rank
    if mbit == 100:
        assert found["gpt2"].sooner["local_sgd"] > found["gpt2"].sooner["ddp-bf16"] > 1.5
        assert found["gpt2"].ddp_exposed_s > 0.9 * found["gpt2"].ddp_step_s


def test_findings_name_both_sides_and_the_cure():
    one = replace(local_facts(0, "a"), num_cores=8, accelerators=())
    assert findings([one, replace(one, rank=1, host="b")], cluster(100), []) == []
    other = replace(one, rank=1, host="b", torch="2.11.0", num_cores=1, clock_offset_s=-3.0, clock_error_s=1e-3)
    link = Link(source="a", target="b", bytes_per_s=1e5, latency_s=0.08)
    wide = ConnectionRates(source="a", target="b", num_connections=4, one_bytes_per_s=1e6, several_bytes_per_s=3.9e6)
    said = "\n".join(findings([one, other], cluster(100, 0.02, [link]), [wide]))
    for word in (
        f"Ranks differ in torch: {one.torch} on ranks 0; 2.11.0 on ranks 1; make them alike",
        "The clock of rank 1 on b is 3s behind rank 0's",
        "One connection does not fill 1 of 1 links: a -> b carries 8mbit over one and 31.2mbit over 4",
        "a -> b differs from its hosts' other links",
        "Messages take 20ms one way",
        "b has 1 of the 2 cores that 1 ranks want",
    ):
        assert word in said


def test_settings_of_tcp_are_named_where_they_hold_up_a_long_link():
    default = replace(
        local_facts(0, "a"), send_buffer_bytes=4 << 20, receive_buffer_bytes=6 << 20, slow_start_after_idle=True
    )
    cured = replace(default, host="b", send_buffer_bytes=1 << 30, receive_buffer_bytes=1 << 30)
    cured = replace(cured, slow_start_after_idle=False)
    unknown = replace(cured, send_buffer_bytes=0, receive_buffer_bytes=0)
    assert tcp_findings([default, default], cluster(1000, 0.0)) == []
    assert tcp_findings([cured, unknown], cluster(1000, 0.05)) == []
    restart, window, other = tcp_findings([default, cured], cluster(1000, 0.05))
    assert "On a a connection starts slowly again" in restart
    assert "tcp_slow_start_after_idle=0` as root" in restart
    lost_s = slow_start_s(4e6, 1.25e8, 0.1)
    assert f"by the model 4MB then take {1e3 * lost_s:.3g}ms longer" in restart
    assert "On a net.ipv4.tcp_wmem ends at 4194304 bytes" in window
    assert "carries at most about 218mbit over a round trip of 100ms" in window
    assert "net.ipv4.tcp_wmem='4096 16384 25000000'" in window
    assert "net.ipv4.tcp_rmem" in other
    assert len(tcp_findings([default, cured], cluster(10, 0.05))) == 1  # one window fills a slow link


NARROW = "ip route replace 10.77.0.0/24 dev eth0 proto kernel scope link cwnd lock 10 && exec "
"""Holds a connection to 10 packets on their way: what a long link does to one whose buffers are too small."""


@pytest.mark.netns
@pytest.mark.idle
@pytest.mark.usefixtures("emulating")
@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_on_emulated_hosts_it_finds_their_rate_and_what_several_connections_bring(narrow, tmp_path):
    emulate = [*PLIANT, "emulate", "--hosts", "2", "--rate", "40mbit", "--delay", "20ms" if narrow else "0ms"]
    doctor = " ".join([*PLIANT, "doctor", "--budget", "10s", "--json", str(tmp_path / "doctor.json")])
    command = [*emulate, "--no-check", "--", "sh", "-c", (NARROW if narrow else "exec ") + doctor]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("machines") == 1  # one rank speaks
    found = json.loads((tmp_path / "doctor.json").read_text())
    for r in found["connections"]:
        one, several = r["one_bytes_per_s"] * 8e-6, r["several_bytes_per_s"] * 8e-6
        if narrow:
            assert several > 1.5 * one
        else:  # bits and not bytes, on any machine; how close it comes is held by the laws on made-up arrivals
            assert 0.15 * 40 < one < 3 * 40
            assert 0.15 * 40 < several < 3 * 40
    if narrow:
        assert any("One connection does not fill" in line for line in found["findings"])
    assert found["verdict"]


def one_way(topology: Topology, source: int, target: int) -> tuple[float, float]:
    """Return the rate in bytes/s and the delay in s from one host to another."""
    here, there = topology.hosts[source], topology.hosts[target]
    rate = min(here.send_bytes_per_s, there.receive_bytes_per_s)
    for link in topology.links:
        if (link.source, link.target) == (here.name, there.name):
            return min(rate, link.bytes_per_s), link.latency_s
    return rate, there.delay_s


@pytest.mark.netns
@pytest.mark.idle
@pytest.mark.extended
@pytest.mark.usefixtures("emulating")
def test_rates_and_round_trips_of_uneven_pairs_are_those_that_were_asked_for(tmp_path):
    slow = cluster(40, 0.008).hosts[2]
    uneven = cluster(80, 0.002, [Link(source="a", target="b", bytes_per_s=2.5e6, latency_s=0.01)])
    uneven = replace(uneven, hosts=(*uneven.hosts[:2], slow))
    save(uneven, tmp_path / "topology.json")
    emulate = [*PLIANT, "emulate", "--topology", str(tmp_path / "topology.json"), "--no-check", "--"]
    command = [*emulate, *PLIANT, "doctor", "--budget", "20s", "--json", str(tmp_path / "doctor.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = from_json(Topology, json.dumps(json.loads((tmp_path / "doctor.json").read_text())["topology"]))
    for i, j in itertools.permutations(range(3), 2):
        (rate, there_s), (_, back_s) = one_way(uneven, i, j), one_way(uneven, j, i)
        (found_rate, found_there_s), (_, found_back_s) = one_way(found, i, j), one_way(found, j, i)
        assert found_rate == pytest.approx(rate, rel=0.1), (i, j)
        # A loaded machine answers late: 2 ms of it count for nothing.
        assert found_there_s + found_back_s == pytest.approx(there_s + back_s, rel=0.1, abs=0.002), (i, j)
