"""A first look: even links have one rate, by what fills them; hosts that are not even have rates of their own."""

import json
import sys
from collections import Counter

import numpy as np
import pytest

import pliant
from pliant.netmodel import Overheads
from pliant.network import emulate_cluster, first_look
from pliant.network.first_look import look_at_links, own_rate
from pliant.spec.matrices import topology_of_matrices

WIRE = Overheads().wire_factor
RATE = 12.5e6


def seen(monkeypatch, streams, *, rate=RATE, busy_s=0.1, half_trip_s=1e-4, places=None, measure=None):
    """Return what ranks make of messages at a rate, and of streams of hosts, in bytes per s; and their lengths."""
    places, asked = [[k] for k in range(len(streams))] if places is None else places, []
    names = list("abcdefgh"[: len(places)])
    monkeypatch.setattr(first_look, "ranks_of_hosts", lambda comm, hosts: (names, places))
    monkeypatch.setattr(first_look, "half_trips_s", lambda comm, *_: np.full((comm.size,) * 2, half_trip_s))

    def each_as_its_source(comm, to, came, duration_s):
        asked.append(duration_s)
        return {source: streams[source] / WIRE for source in came}

    monkeypatch.setattr(first_look, "measure_throughput", measure or each_as_its_source)
    found = pliant.run_world(len(streams), lambda place: look_at_links(place.comm, rate, busy_s, 1e-4, 1))
    assert found[0] is None or len({each.topology for each in found}) == 1
    return found[0], set(asked)


def rates_of(view):
    return [(host.send_bytes_per_s, host.receive_bytes_per_s) for host in view.topology.hosts]


def test_even_links_that_are_full_have_the_rate_of_the_messages(monkeypatch):
    view, _ = seen(monkeypatch, [RATE, 1.1 * RATE, 0.95 * RATE])
    assert view.is_complete
    assert [host.name for host in view.topology.hosts] == ["a", "b", "c"]
    assert rates_of(view) == [pytest.approx((RATE, RATE))] * 3
    assert "12.5MB/s in the messages of training" in view.topology.provenance


@pytest.mark.parametrize(
    ("streams", "more", "rate"),
    [
        ([2 * RATE] * 3, {}, 2 * RATE),  # not filled by what training sends
        ([RATE, 1.1 * RATE, RATE], {"half_trip_s": 0.05}, RATE),  # mostly latency
        ([RATE] * 3, {"rate": 0.0}, RATE),  # too small to tell
    ],
)
def test_even_links_that_are_not_full_have_the_rate_of_the_slowest_stream(monkeypatch, streams, more, rate):
    view, _ = seen(monkeypatch, streams, **more)
    assert view.is_complete
    assert rates_of(view) == [pytest.approx((rate, rate))] * 3
    assert "at least" in view.topology.provenance


def test_hosts_that_are_not_even_have_the_rates_of_their_best_streams(monkeypatch):
    view, _ = seen(monkeypatch, [4 * RATE, 2 * RATE, RATE, 3 * RATE])
    assert view.is_complete
    sent, received = zip(*rates_of(view), strict=True)
    assert sent == pytest.approx([4 * RATE, 2 * RATE, RATE, 3 * RATE])
    assert received == pytest.approx([3 * RATE, 4 * RATE, 4 * RATE, 4 * RATE])


def test_a_stream_that_fits_no_limits_of_hosts_has_a_second_try(monkeypatch):
    """One that was held up, and one whose data came all at once; a slow pair stays slow."""
    limits, tries = [4 * RATE, 2 * RATE, RATE, 3 * RATE, 2 * RATE], Counter()
    wrong, slow = {(0, 3): 0.3, (4, 2): 3.0}, {(3, 1): 0.2}

    def measure(comm, to, came, duration_s):
        tries.update((source, comm.rank) for source in came)
        return {
            source: min(limits[source], limits[comm.rank])
            * (wrong.get((source, comm.rank), 1.0) if tries[source, comm.rank] == 1 else 1.0)
            * slow.get((source, comm.rank), 1.0)
            / WIRE
            for source in came
        }

    view, _ = seen(monkeypatch, limits, measure=measure)
    assert {pair: count for pair, count in tries.items() if count > 1} == {(0, 3): 2, (4, 2): 2, (3, 1): 2}
    sent, received = zip(*rates_of(view), strict=True)
    assert sent == pytest.approx([3 * RATE, 2 * RATE, RATE, 3 * RATE, 2 * RATE])
    assert received == pytest.approx([3 * RATE, 2 * RATE, RATE, 3 * RATE, 2 * RATE])
    (link,) = view.topology.links
    assert (link.source, link.target, link.bytes_per_s) == ("d", "b", pytest.approx(0.4 * RATE))


@pytest.mark.parametrize("shared", [False, True])
def test_one_round_tells_whether_groups_of_hosts_need_a_second_look(monkeypatch, shared):
    """Slow streams between two groups are what they were on paths of their own, and others through one queue."""
    tries, rng = Counter(), np.random.default_rng(0)
    own = rng.uniform(0.1, 0.5, (6, 6))
    again = own * np.exp(rng.choice([-0.5, 0.5], (6, 6)))

    def measure(comm, to, came, duration_s):
        tries.update((source, comm.rank) for source in came)
        found = {}
        for source in came:
            part = again if shared and tries[source, comm.rank] > 1 else own
            across = source % 2 != comm.rank % 2  # as many streams leave in each round, which shows nothing by itself
            found[source] = 4 * RATE * (part[source, comm.rank] if across else 1.0) / WIRE
        return found

    view, _ = seen(monkeypatch, [4 * RATE] * 6, measure=measure)
    assert sum(count > 1 for count in tries.values()) == (30 if shared else 6)
    assert all((source - target) % 2 for (source, target), count in tries.items() if count > 1 and not shared)
    assert [rack.hosts for rack in view.topology.racks] == ([("a", "c", "e"), ("b", "d", "f")] if shared else [])


@pytest.mark.parametrize(("num", "rounds"), [(2, 1), (6, 5), (8, 5)])
def test_up_to_six_hosts_all_pairs_are_seen(monkeypatch, num, rounds):
    view, _ = seen(monkeypatch, [(2 + k % 2) * RATE for k in range(num)])
    assert view.is_complete == (num <= 6)
    assert f"{rounds} times {num} streams" in view.topology.provenance


def test_streams_are_longer_on_a_long_way(monkeypatch):
    assert seen(monkeypatch, [RATE] * 3)[1] == {0.3}
    assert seen(monkeypatch, [RATE] * 3, half_trip_s=0.05)[1] == {12 * 2 * 0.05}


@pytest.mark.netns
def test_the_links_of_emulated_hosts_are_seen_as_they_are(tmp_path):
    """Pairs with rates of their own, in the direction of each stream."""
    rates = [[0, 40, 10], [20, 0, 40], [40, 20, 0]]
    topology = topology_of_matrices(
        [[rate * 1e6 / 8 for rate in row] for row in rates], round_trip_s=4e-3 * (1 - np.eye(3))
    )
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    said = []
    with emulate_cluster(topology) as hosts:
        results = hosts.run([sys.executable, str(script)], on_line=lambda rank, line: said.append(line))
    assert [result.exit_code for result in results] == [0] * 3, said
    (found,) = (json.loads(line) for line in said if line.startswith("[["))
    ratios = [
        one / rate
        for ours, given in zip(found, rates, strict=True)
        for one, rate in zip(ours, given, strict=True)
        if rate
    ]
    assert min(ratios) > 0.8
    assert max(ratios) < 1.25


LOOK = """
import json
import torch.distributed as dist
from pliant.comm import new_comm
from pliant.network.first_look import look_at_links

dist.init_process_group("gloo")
comm = new_comm(dist.group.WORLD, 30.0)
view = look_at_links(comm, 0.0, 0.0, 1e-4, 1)
assert view.is_complete
if comm.rank == 0:
    hosts = view.topology.hosts
    links = {(link.source, link.target): link.bytes_per_s for link in view.topology.links}
    rate = lambda a, b: links.get((a.name, b.name), min(a.send_bytes_per_s, b.receive_bytes_per_s))
    print(json.dumps([[8e-6 * rate(a, b) for b in hosts] for a in hosts]))
comm.close()
dist.barrier()
dist.destroy_process_group()
"""


def test_hosts_of_several_ranks_are_looked_at_by_one_of_each(monkeypatch):
    view, _ = seen(monkeypatch, [RATE] * 3, places=[[0, 1], [2]])
    assert [host.num_ranks for host in view.topology.hosts] == [2, 1]


def test_there_is_nothing_to_see_on_one_host(monkeypatch):
    assert seen(monkeypatch, [RATE] * 3, places=[[0, 1, 2]]) == (None, set())


def test_the_rank_that_waited_least_tells_the_rate_and_few_bytes_tell_none():
    busy_s = (0.9, 0.8, 1.0)
    rates = pliant.run_world(3, lambda place: own_rate(place.comm, 8e6, busy_s[place.rank]))
    assert rates == pytest.approx([WIRE * 1e7] * 3)
    sent = (8e6, 9e5, 8e6)
    assert pliant.run_world(3, lambda place: own_rate(place.comm, sent[place.rank], 1.0)) == [0.0] * 3
