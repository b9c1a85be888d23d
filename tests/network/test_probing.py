"""The probe's arithmetic on made-up figures, and the whole of it between threads."""

import itertools
import math
import os
import random
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

import pliant
import pliant.codecs as c
from pliant.netmodel import Overheads
from pliant.network import measure_machine, probe, streams
from pliant.network.inference import (
    host_delays,
    host_rates,
    more_usual,
    odd_streams,
    outlier_streams,
    rates_by_hosts,
    round_robin_pairs,
    slow_pairs,
    split_into_rounds,
    topology_from,
)
from pliant.network.streams import steady_throughput
from pliant.spec import Machine, Topology, from_json, to_json


@pytest.mark.parametrize("num", range(2, 12))
def test_in_a_tournament_each_meets_each_once(num):
    rounds = round_robin_pairs(num)
    assert len(rounds) == num - 1 + num % 2
    for pairs in rounds:
        assert len({end for pair in pairs for end in pair}) == 2 * len(pairs) == num - num % 2
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(num), 2))


def test_second_looks_are_disjoint_and_few():
    assert split_into_rounds([(0, 1), (0, 2), (2, 3), (1, 2)], 2) == [[(0, 1), (2, 3)], [(0, 2)]]
    assert split_into_rounds([], 2) == []


def played(send, receive, pair_limit=None, noise=0.03):
    """What a tournament and a ring would find among such hosts."""
    rng = np.random.default_rng(0)
    size, rounds = len(send), []
    for pairs in round_robin_pairs(size):
        rate = np.zeros((size, size))
        for a, b in pairs:
            for i, j in ((a, b), (b, a)):
                limit = (pair_limit or {}).get((i, j), np.inf)
                rate[i, j] = min(send[i], receive[j], limit) * (1 + noise * rng.uniform(-1, 1))
        rounds.append(rate)
    return np.array(rounds)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("num", [5, 6, 8])
def test_limits_of_hosts_are_found_beside_streams_that_were_wrong(num, seed):
    """Whose second try counts where it is nearer to what the limits say; so a pair that is slow both times stays so.

    The wrong ones are from the slowest host, and to the next: the limits of the fastest show in too few streams.
    """
    rng = np.random.default_rng(seed)
    limits = rng.permutation(np.geomspace(40.0, 400.0, num))
    true = np.where(np.eye(num, dtype=bool), 0.0, np.minimum(limits[:, None], limits))
    i, n, *others = np.argsort(limits).tolist()
    j, k = rng.permutation(others)[:2].tolist()
    pairs, again = true * rng.uniform(0.98, 1.02, true.shape), np.zeros_like(true)
    pairs[i, j], pairs[k, n] = 0.3 * true[i, j], 2.5 * true[k, n]
    usual = rates_by_hosts(pairs)
    assert np.allclose(usual[true > 0], true[true > 0], rtol=0.05)
    assert set(odd_streams(pairs, usual)) == {(i, j), (k, n)}
    again[i, j], again[k, n] = 0.31 * true[i, j], true[k, n]
    found = more_usual(pairs, again, usual)
    assert found[i, j] == pytest.approx(0.31 * true[i, j])
    assert found[k, n] == true[k, n]
    assert np.count_nonzero(found != pairs) == 2


def test_no_stream_is_odd_where_pairs_are_what_limits_them():
    for seed in range(20):
        pairs = 30 ** np.random.default_rng(seed).random((6, 6))
        np.fill_diagonal(pairs, 0.0)
        assert odd_streams(pairs, rates_by_hosts(pairs)) == []


def test_hosts_and_links_are_told_apart():
    send, receive = [100.0, 100.0, 40.0, 100.0, 100.0], [100.0, 100.0, 100.0, 100.0, 30.0]
    rounds = played(send, receive, {(0, 1): 10.0})
    assert np.allclose(host_rates(rounds)[0], send, rtol=0.04)
    assert np.allclose(host_rates(rounds)[1], receive, rtol=0.04)
    assert slow_pairs(rounds, rounds.max(0)) == [(0, 1)]
    assert outlier_streams(rounds) == []
    latencies = np.full((5, 5), 0.002)
    latencies[0, 3] = latencies[3, 0] = 0.05
    found = topology_from("abcde", [1, 2, 1, 1, 1], rounds, rounds.max(0), latencies, "made up")
    assert found.num_ranks == 6
    links = {(link.source, link.target): link for link in found.links}
    assert links["a", "b"].bytes_per_s == pytest.approx(10, rel=0.04)
    assert links["a", "d"].latency_s == links["d", "a"].latency_s == pytest.approx(0.05)
    assert from_json(Topology, to_json(found)) == found


def test_where_each_pair_has_a_path_of_its_own_hosts_do_more_than_their_best_stream():
    """All streams at once tell a host's limit from its pairs'; then every pair is a link."""
    rng = np.random.default_rng(3)
    pairs = 1e6 * 100 ** rng.random((4, 4)) * (1 - np.eye(4))
    rounds = np.stack([pairs * (rng.random((4, 4)) < 0.5), pairs])
    send, receive = host_rates(rounds, crowd=pairs)
    assert np.allclose(send, pairs.sum(1))
    assert np.allclose(receive, pairs.sum(0))
    found = topology_from("abcd", [1] * 4, rounds, pairs, np.zeros((4, 4)), "made up", crowd=pairs)
    rates = {(link.source, link.target): link.bytes_per_s for link in found.links}
    assert rates == {(a, b): pairs[i, j] for i, a in enumerate("abcd") for j, b in enumerate("abcd") if a != b}
    limited = pairs / pairs.sum(1, keepdims=True) * pairs.max(1, keepdims=True)  # who sends shares one interface
    assert np.allclose(host_rates(rounds, crowd=limited)[0], pairs.max(1))


def test_a_stream_that_beats_all_others_is_suspected():
    rounds = played([100.0] * 4, [100.0] * 4)
    rounds[0, 0, 3] = 140.0
    assert outlier_streams(rounds) == [(0, 0, 3)]
    rounds = played([100.0, 100.0, 50.0, 50.0], [100.0, 100.0, 50.0, 50.0])
    rounds[0, 0, 3] = 108.0  # no more than its sender can do, but more than its receiver can
    assert outlier_streams(rounds)[0] == (0, 0, 3)


def test_delays_come_from_halves_of_round_trips():
    delays = np.array([0.0, 0.005, 0.02, 0.001])
    both = (delays[:, None] + delays[None, :]) / 2
    assert np.allclose(host_delays(both), delays)
    both[0, 2] = both[2, 0] = np.nan
    assert np.allclose(host_delays(both), delays)
    assert host_delays(np.full((2, 2), 0.005)) == pytest.approx([0.005, 0.005])  # nobody can tell whose it is


def test_bursts_and_late_looks_do_not_count():
    size, rate = 20_000, 1.25e6
    burst = [(0.0, size * (k + 1)) for k in range(6)]  # a full bucket
    steady = [((k + 1) * size / rate, size * (k + 7)) for k in range(26)]
    assert steady_throughput([*burst, *steady]) == pytest.approx(rate, rel=1e-6)
    looked_late = [(math.ceil(at * 20) / 20, total) for at, total in steady]  # only every 50 ms
    assert steady_throughput([*burst, *looked_late]) == pytest.approx(rate, rel=0.15)
    assert steady_throughput([(0.0, 1), (0.0, 2), (0.0, 3)]) > 0
    assert steady_throughput([(0.0, 100), (1.0, 200)]) == pytest.approx(200, rel=1)


def test_a_packet_that_is_lost_in_the_first_answer_makes_no_link_slow(monkeypatch):
    """64 KB that take 0.2 s more, with a retransmission, would be 2.5 Mbit/s of 40; the second answer tells."""
    rate, asked, clock = 5e6, [], [0.0]

    def answer(ways, peer, size):
        times = [0.2 if k == 3 and not asked else size / rate for k in range(ways.num_chunks)]
        asked.append(size)
        begun = clock[0]
        clock[0] += sum(times)
        return [(begun + sum(times[: k + 1]), size * (k + 1)) for k in range(ways.num_chunks)]

    done = SimpleNamespace(wait=lambda: None)
    ways = SimpleNamespace(num_chunks=32, questions=0, comm=SimpleNamespace(exchange=lambda *_, **__: done))
    monkeypatch.setattr(streams, "_answer", answer)
    monkeypatch.setattr(streams.time, "perf_counter", lambda: clock[0])
    assert streams._fetch(ways, 1, 0.15) == pytest.approx(rate)
    assert len(asked) > 1


def test_whoever_has_to_wait_for_a_core_does_not_find_more_than_there_is():
    """Chunks that came meanwhile are found at once; less than the rate may be found, and is looked at again."""
    chance, rate, num, found = random.Random(0), 1e6, 32, []
    for _ in range(500):
        took_s = chance.uniform(0.1, 1.0)
        begins_s, lasts_s = chance.uniform(0.0, took_s), chance.uniform(0.0, 0.6 * took_s)
        came_s = [took_s * (k + chance.random() / 10) / num for k in range(1, num + 1)]
        looked_s = [begins_s + lasts_s if 0 <= at - begins_s < lasts_s else at for at in came_s]
        found.append(
            steady_throughput([(at + 1e-6 * k, rate * took_s * (k + 1) / num) for k, at in enumerate(looked_s)])
        )
    assert max(found) < 1.35 * rate
    assert sum(each > 1.2 * rate for each in found) < 10
    assert statistics.median(found) == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(("hosts", "counts"), [([[0], [1], [2]], [1, 1, 1]), ([[0, 1], [2]], [2, 1]), (None, [3])])
def test_all_ranks_get_one_topology(hosts, counts):
    found = pliant.run_world(3, lambda place: probe(place.comm, budget_s=1.0, hosts=hosts))
    assert len(set(found)) == 1
    assert [host.num_ranks for host in found[0].hosts] == counts
    limited = [host.send_bytes_per_s > 1e6 and host.receive_bytes_per_s > 1e6 for host in found[0].hosts]
    assert limited == [len(counts) > 1] * len(counts)  # one host has no network to measure
    assert all(host.delay_s < 0.05 for host in found[0].hosts)
    assert found[0].num_cpus == len(os.sched_getaffinity(0))  # threads of one process: one machine, counted once
    assert "pliant probe" in found[0].provenance
    assert "torch 2" in found[0].provenance
    assert f"3 ranks on {len(counts)} hosts" in found[0].provenance


def test_what_cannot_be_probed_is_refused():
    def body(place):
        with pytest.raises(ValueError, match="host by host"):
            probe(place.comm, hosts=[[1], [0]])
        with pytest.raises(ValueError, match="above 0 and below half"):
            probe(place.comm, budget_s=40.0)
        with pytest.raises(ValueError, match="go by name"):
            measure_machine(place.comm, codecs=[c.Qsgd(bits=4), c.Qsgd(bits=8)])

    pliant.run_world(2, body)


def test_a_rank_alone_on_its_host_says_nothing_of_loopback():
    apart = [[0], [1]]
    codecs = [c.Sign()]
    found = pliant.run_world(2, lambda p: measure_machine(p.comm, codecs=codecs, budget_s=0.05, hosts=apart))
    assert found[0].loopback_bytes_per_s == 0.0


def test_ranks_alone_on_their_hosts_do_not_halve_the_loopback_of_others(monkeypatch):
    measured = lambda comm, *_: 100.0 if comm.rank < 2 else 0.0  # noqa: E731
    monkeypatch.setattr("pliant.network.machine.loopback_bytes_per_s", measured)
    apart, codecs = [[0, 1], [2], [3]], [c.Sign()]
    found = pliant.run_world(4, lambda p: measure_machine(p.comm, codecs=codecs, budget_s=0.05, hosts=apart))
    assert found[0].loopback_bytes_per_s == 100.0


def test_what_the_machine_can_do():
    codecs = [c.MinMax8(), c.TopK()]
    found = pliant.run_world(2, lambda place: measure_machine(place.comm, codecs=codecs, budget_s=0.2))
    assert len(set(found)) == 1
    machine = found[0]
    assert set(machine.encode_s_per_element) == set(machine.decode_s_per_element) == {"minmax8", "topk"}
    assert all(1e-12 < s < 1e-5 for s in machine.encode_s_per_element.values())
    assert machine.memory_bytes_per_s > 1e7
    assert machine.add_bytes_per_s > 1e7
    assert 0 <= machine.message_s < 0.1
    assert 0 < machine.message_cpu_s < 0.1
    assert 0 <= machine.byte_cpu_s < 1e-6
    assert machine.loopback_bytes_per_s > 1e6
    found = Overheads.of(machine)
    assert found.loopback_bytes_per_s == machine.loopback_bytes_per_s
    assert found.add_s["topk"] == machine.decode_s_per_element["topk"]
    assert from_json(Machine, to_json(machine)) == machine


def test_a_short_budget_is_met_with_shorter_vectors(monkeypatch):
    coded, encode = set(), c.MinMax8.encode
    monkeypatch.setattr(c.MinMax8, "encode", lambda codec, x, *rest: (coded.add(x.numel()), encode(codec, x, *rest))[1])
    for budget_s, numel in ((0.2, 1 << 20), (0.004, 1 << 17)):
        coded.clear()
        codecs = [c.MinMax8()]
        found = pliant.run_world(2, lambda p, s=budget_s, own=codecs: measure_machine(p.comm, codecs=own, budget_s=s))
        assert coded == {numel}
        assert found[0] == found[1]
        assert 1e-12 < found[0].encode_s_per_element["minmax8"] < 1e-5
