"""One rate law: the same messages take the same seconds in every form, and wherever they are predicted."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pliant.netmodel import IDEAL, KEYS, DenseExchange, Links, Overheads, PointToPoint, RankMatrix, Round
from pliant.recsys import Frequencies, Rates, expected_traffic, step_cost
from pliant.recsys.placement.traffic import PHASES
from pliant.schedules import Collective, predict_cost
from pliant.simulator.exchange_time import exchange_time
from pliant.spec import EmbeddingPlan, Host, Link, Move, Rack, Schedule, Table, TableLayout, Topology

SOME = Overheads(wire_factor=1.1, message_s=2e-3, sharing=0.3, loopback_bytes_per_s=2e5, reduce_bytes_per_s=1e30)


@st.composite
def topologies(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 1))
    rates = st.sampled_from([0.0, 1e5, 3e5])
    hosts = tuple(
        Host(
            name=f"h{k}",
            num_ranks=size,
            send_bytes_per_s=draw(rates),
            receive_bytes_per_s=draw(rates),
            delay_s=draw(st.sampled_from([0.0, 1e-3, 3e-2])),
        )
        for k, size in enumerate(sizes)
    )
    racks = ()
    if len(hosts) > 1 and draw(st.booleans()):
        halves = (hosts[:1], hosts[1:])
        racks = tuple(
            Rack(name=f"r{k}", hosts=tuple(h.name for h in half), send_bytes_per_s=7e4) for k, half in enumerate(halves)
        )
    links = ()
    if len(hosts) > 1 and draw(st.booleans()):
        links = (Link(source="h1", target="h0", bytes_per_s=4e4, latency_s=draw(st.sampled_from([1e-4, 0.1]))),)
    return Topology(hosts=hosts, racks=racks, links=links)


def matrix(topology, seed):
    """Return whole bytes between some pairs of ranks, (1, num_ranks, num_ranks)."""
    rng = np.random.default_rng(seed)
    n = topology.num_ranks
    return (rng.integers(1, 5000, (1, n, n)) * (rng.random((1, n, n)) < 0.7) * (1 - np.eye(n))).astype(float)


def named(num_bytes):
    source, target = np.nonzero(num_bytes[0])
    return PointToPoint(source=source, target=target, share=num_bytes[0, source, target], num_bytes=np.ones(1))


def close(a, b):
    for name in ("wire_s", "loopback_s", "latency_s", "message_s", "total_s"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-12), name


@given(topologies(), st.integers(0, 99), st.integers(1, 3))
def test_the_same_messages_take_the_same_time_in_every_form(topology, seed, repeat):
    links, num_bytes = Links(topology, SOME), matrix(topology, seed)
    whole = RankMatrix(num_bytes=num_bytes, num_messages=(num_bytes > 0).astype(float))
    close(links.load(whole, repeat), links.load(named(num_bytes), repeat))
    give = num_bytes.sum(2)
    take = np.where(num_bytes.sum(1) > 500, 2.0, 0.0)
    product = (give[:, :, None] * take[:, None, :]) * (1 - np.eye(topology.num_ranks))
    dense = links.load(DenseExchange(give=give, take=take), repeat)
    close(dense, links.load(RankMatrix(num_bytes=product, num_messages=(product > 0).astype(float)), repeat))


def last_arrival_s(topology, num_bytes, wire_factor, posted):
    """Return when the last message arrives: each once everything that it goes through has sent all that it has to."""
    host_of = [k for k, host in enumerate(topology.hosts) for _ in range(host.num_ranks)]
    own = {(link.source, link.target): link for link in topology.links}

    def delay_s(source, target):
        link = own.get((source.name, target.name))
        return link.latency_s if link else target.delay_s

    sent_s, delays_s = {}, {}
    for a, b in zip(*np.nonzero(num_bytes[0]), strict=True):
        source, target = topology.hosts[host_of[a]], topology.hosts[host_of[b]]
        if source is target:
            continue
        through = [("out", source.name, source.send_bytes_per_s), ("in", target.name, target.receive_bytes_per_s)]
        if link := own.get((source.name, target.name)):
            through.append(("link", source.name, link.bytes_per_s))
        late_s = delay_s(source, target) + (0.0 if posted else delay_s(target, source))
        for way, name, rate in through:
            sent_s[way, name] = sent_s.get((way, name), 0.0) + (
                num_bytes[0, a, b] / rate * wire_factor if rate else 0.0
            )
            delays_s[way, name] = max(delays_s.get((way, name), 0.0), late_s)
    return max((sent_s[name] + delays_s[name] for name in sent_s), default=0.0)


@given(topologies().filter(lambda found: not found.racks), st.integers(0, 99), st.booleans())
def test_a_round_lasts_until_its_last_message_arrives(topology, seed, posted):
    """A busy link with a short delay and a free one with a long delay take the longer time, not the sum of both."""
    costs, num_bytes = replace(IDEAL, wire_factor=1.1, sharing=0.0), matrix(topology, seed)
    took = Links(topology, costs).load(named(num_bytes), posted=posted)
    assert took.total_s[0] == pytest.approx(last_arrival_s(topology, num_bytes, 1.1, posted), rel=1e-12)


@given(topologies(), st.integers(0, 99))
def test_simulator_schedules_and_embeddings_agree(topology, seed):
    num_bytes = matrix(topology, seed)
    links = Links(topology, SOME)
    expected_s = float(links.load(named(num_bytes)).total_s[0])
    # As a round of a schedule: each block is held by one rank and needed by another.
    pairs = list(zip(*np.nonzero(num_bytes[0]), strict=True))
    sizes = [int(num_bytes[0, a, b]) for a, b in pairs]
    moves = tuple(Move(source=int(a), target=int(b), block=k, kind="copy") for k, (a, b) in enumerate(pairs))
    ranks = range(topology.num_ranks)
    collective = Collective(
        num_ranks=topology.num_ranks,
        block_bytes=tuple(sizes),
        holders=tuple((int(a),) for a, _ in pairs),
        needers=tuple((int(b),) for _, b in pairs),
    )
    if moves:
        schedule = Schedule(name="one round", num_ranks=len(ranks), num_blocks=len(moves), rounds=(moves,))
        assert predict_cost(schedule, collective, topology, SOME).total_s == pytest.approx(expected_s, rel=1e-12)
    # As an exchange of the simulator, which has no work.
    took = exchange_time([Round(messages=named(num_bytes), posted=True)], links, SOME.coefficients(), 1, own_work=False)
    assert took.seconds[0] == pytest.approx(expected_s, rel=1e-12)
    # As what a lookup of embeddings asks for: its expected bytes and messages, phase by phase.
    table = Table(name="t", num_rows=1000, dim=16)
    layout = TableLayout(kind="rows")
    plan = EmbeddingPlan(tables=(table,), layouts=(layout,), num_ranks=topology.num_ranks, batch_size=100)
    traffic, rates = expected_traffic(plan, Frequencies.uniform([1000])), Rates(overheads=SOME)
    found = step_cost(traffic, links, rates)
    for k, phase in enumerate(PHASES):
        one = RankMatrix(num_bytes=traffic.num_bytes[k : k + 1], num_messages=traffic.num_messages[k : k + 1])
        assert found.part_s(phase) == pytest.approx(float(links.load(one).total_s[0]), rel=1e-12), phase


def four_hosts(*delays_s, bytes_per_s=0.0):
    rates = {"send_bytes_per_s": bytes_per_s, "receive_bytes_per_s": bytes_per_s}
    return Topology(hosts=tuple(Host(name=f"h{k}", delay_s=delay_s, **rates) for k, delay_s in enumerate(delays_s)))


def ring(n):
    ranks = np.arange(n)
    return PointToPoint(
        source=ranks, target=(ranks + 1) % n, share=np.full(n, 1 / n), num_bytes=np.array([1.0]), cyclic=True
    )


def test_around_a_ring_the_longest_path_counts():
    """Six hops around four hosts, one of them 30 ms away and the others 5 ms: 45 ms once round, 30 and 5 more."""
    took = Links(four_hosts(5e-3, 5e-3, 5e-3, 30e-3), IDEAL).load(ring(4), repeat=6)
    assert took.latency_s[0] == pytest.approx(45e-3 + 35e-3)
    even = Links(four_hosts(5e-3, 5e-3, 5e-3, 5e-3), IDEAL).load(ring(4), repeat=6)
    assert even.latency_s[0] == pytest.approx(6 * 5e-3)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(1, 20))
def test_a_path_is_walked_hop_by_hop(delays_s, hops):
    """Against an oracle that starts at each host and goes on to the next."""
    n = len(delays_s)
    longest = max(sum(delays_s[(start + k + 1) % n] for k in range(hops)) for start in range(n))
    assert Links(four_hosts(*delays_s), IDEAL).load(ring(n), repeat=hops).latency_s[0] == pytest.approx(longest)


def by_segments_s(block_s, trip_s, num_segments, rounds):
    """Return what a hop's blocks take, segment by segment: the next but one leaves when word of one is back."""
    starts, free_s, each_s = [], 0.0, block_s / num_segments
    for j in range(num_segments * rounds):
        starts.append(max(free_s, starts[j - 2] + each_s + trip_s) if j >= 2 else free_s)
        free_s = starts[-1] + each_s
    return free_s


@given(st.floats(1e3, 1e7), st.floats(1e-3, 0.2), st.integers(2, 6))
def test_two_segments_of_a_ring_are_under_way_at_a_time(num_bytes, delay_s, n):
    rate, rounds, megabytes = 1e7, 40, replace(ring(n), num_bytes=np.array([n * num_bytes]))
    network = Links(four_hosts(*[delay_s] * n, bytes_per_s=rate), replace(IDEAL, sharing=0.0))
    took = network.load(megabytes, repeat=rounds)
    num_segments = max(2, math.ceil(num_bytes / 2**20))
    expected_s = by_segments_s(num_bytes / rate, 2 * delay_s, num_segments, rounds)
    once_s = num_bytes / rate + 2 * delay_s
    assert expected_s - once_s <= took.total_s[0] <= expected_s + once_s + rounds * delay_s  # once around the ring more
    assert took.total_s[0] >= rounds * num_segments * delay_s


def test_served_in_turn_an_interface_has_one_flow():
    """All-to-all of four hosts: three flows at once, but one where ranks serve one another in turn."""
    hosts = tuple(Host(name=f"h{k}", send_bytes_per_s=1e6, receive_bytes_per_s=1e6) for k in range(4))
    links = Links(Topology(hosts=hosts), Overheads(wire_factor=1.0, sharing=0.3))
    ones = {"give": np.ones((1, 4)), "take": np.full((1, 4), 1e6)}
    assert links.load(DenseExchange(**ones)).wire_s[0] == pytest.approx(3 * 1.2)
    assert links.load(DenseExchange(**ones, rotated=True)).wire_s[0] == pytest.approx(3)


def test_ranks_that_share_a_core_take_turns_with_messages_and_not_with_bytes():
    """Eight ranks on two CPUs: messages take four times as long; with CPUs to spare, as long as ever."""
    hosts = tuple(Host(name=f"h{k}", send_bytes_per_s=1e6) for k in range(8))
    few, many, unknown = (Links(Topology(hosts=hosts, num_cpus=n), SOME).load(ring(8)) for n in (2, 64, 0))
    assert few.message_s[0] == pytest.approx(4 * unknown.message_s[0])
    assert few.wire_s[0] == many.wire_s[0] == unknown.wire_s[0]
    assert many.total_s[0] == unknown.total_s[0]


def test_the_bottleneck_has_a_name():
    hosts = tuple(Host(name=f"h{k}", num_ranks=2, send_bytes_per_s=1e6 / (k + 1)) for k in range(2))
    links = Links(Topology(hosts=hosts), SOME)
    out = PointToPoint(source=np.array([2]), target=np.array([0]), share=np.ones(1), num_bytes=np.array([1e5]))
    inside = PointToPoint(source=np.array([2]), target=np.array([3]), share=np.ones(1), num_bytes=np.array([1e5]))
    assert links.load(out).bottleneck == ("h1 out",)
    assert links.load(inside).bottleneck == ("loopback",)
    assert len(KEYS) == len(SOME.coefficients())
