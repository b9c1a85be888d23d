"""What must hold of every prediction, and what can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from cases import cluster, even, plan_for
from hypothesis import given, settings, strategies as st

import pliant as p
from pliant.netmodel import BucketBatch, DenseExchange, Links, PointToPoint
from pliant.simulator import IDEAL, KEYS, Overheads, simulate, simulate_many, workload_named
from pliant.simulator.collective_rounds import average, ring, tree
from pliant.simulator.prepared import prepare
from pliant.simulator.simulate import context_for
from pliant.simulator.traffic import inside_groups, traffic_of
from pliant.spec import Custom, Link, Rack, Rule, SyncPlan, from_json, to_json
from tables import ALGORITHMS, BETWEEN_STEPS

ROWS = {**ALGORITHMS, **BETWEEN_STEPS, "hierarchical": p.between_hosts(p.onebit())}
PLANS = {name: plan_for(algorithm) for name, algorithm in ROWS.items()}
all_plans = pytest.mark.parametrize("name", sorted(PLANS))
some_plan = st.sampled_from(sorted(PLANS))
RATES = st.floats(1e5, 1e10)
DELAYS = st.floats(0, 0.05)
CLOSE = 1 + 1e-9


@st.composite
def topologies(draw):
    num_hosts, ranks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    whole = cluster(num_hosts, ranks=ranks)
    hosts = tuple(
        replace(h, send_bytes_per_s=draw(RATES), receive_bytes_per_s=draw(RATES), delay_s=draw(DELAYS))
        for h in whole.hosts
    )
    pairs = draw(st.sets(st.tuples(st.integers(0, num_hosts - 1), st.integers(0, num_hosts - 1)), max_size=3))
    links = tuple(
        Link(source=f"h{a}", target=f"h{b}", bytes_per_s=draw(RATES), latency_s=draw(DELAYS))
        for a, b in sorted(pairs)
        if a != b
    )
    return replace(whole, hosts=hosts, links=links)


def sped_up(topology, factor, less):
    hosts = tuple(
        replace(
            h,
            send_bytes_per_s=h.send_bytes_per_s * factor,
            receive_bytes_per_s=h.receive_bytes_per_s * factor,
            delay_s=h.delay_s * less,
        )
        for h in topology.hosts
    )
    links = tuple(replace(x, bytes_per_s=x.bytes_per_s * factor, latency_s=x.latency_s * less) for x in topology.links)
    return replace(topology, hosts=hosts, links=links)


@settings(max_examples=150, deadline=None)
@given(some_plan, topologies(), st.floats(1, 100), st.floats(0, 1))
def test_cheaper_links_are_never_slower(name, topology, factor, less):
    """Late weights, which may meet other parts of a step if they are sooner, take no more than an overlap from it."""
    if topology.num_ranks != 4 and name == "owner-uneven":
        return
    late = any(rule.exchange.timing.delay_steps and rule.exchange.exchanges_weights for rule in PLANS[name].rules)
    rows = {None: Overheads().compute_overlap, IDEAL: CLOSE} if late else {None: CLOSE}
    for overheads, at_most in rows.items():
        slow = simulate(PLANS[name], even(), topology, overheads=overheads)
        if slow.prepared.all_free:
            return  # sooner exchanges are also more of them, each of which takes something from computing
        fast = simulate(PLANS[name], even(), sped_up(topology, factor, less), overheads=overheads)
        assert fast.step_s <= slow.step_s * at_most
        assert fast.makespan_s <= slow.makespan_s * at_most


@settings(max_examples=100, deadline=None)
@given(some_plan, topologies(), st.floats(1, 10))
def test_more_computing_is_never_faster(name, topology, factor):
    work = even()
    tensors = tuple(replace(t, ready_s=t.ready_s * factor) for t in work.tensors)
    more = replace(work, tensors=tensors, forward_s=factor * 0.1, backward_s=factor * 0.2, step_s=factor * 0.01)
    assert simulate(PLANS[name], more, topology).step_s >= simulate(PLANS[name], work, topology).step_s / CLOSE


@settings(max_examples=100, deadline=None)
@given(some_plan, topologies())
def test_accounts_balance(name, topology):
    """What is waited for is part of what is exchanged, and a step is what it consists of, also by what is counted."""
    found = simulate(PLANS[name], even(), topology)
    assert found.step_s == pytest.approx(found.compute_s + found.exposed_s)
    assert found.exposed_s <= found.exchange_s * 1.1 + 1e-9
    assert found.codec_s <= found.exchange_s * (1 + 1e-9)
    coefficients = dict(zip(KEYS, Overheads().coefficients(), strict=True))
    counted = found.counted
    assert min(counted.values()) > 0
    assert sum(coefficients[key] * count for key, count in counted.items()) == pytest.approx(found.step_s)
    assert sum(seconds for _, seconds in found.critical_path) == pytest.approx(found.step_s * found.period)


@settings(max_examples=60, deadline=None)
@given(some_plan, topologies(), st.integers(0, 3))
def test_every_byte_that_is_sent_is_received(name, topology, turn):
    if topology.num_ranks == 1:
        return
    size = topology.num_ranks
    numel = np.array([300_000.0, 1234.0, 7.0])
    owners = np.zeros((3, size))
    owners[:, turn % size] = numel
    shapes = (((300, 1000),), ((1234,),), ((7,),))
    batch = BucketBatch(numel=numel, itemsize=np.full(3, 4.0), shapes=shapes, held=owners, num_held=owners > 0)
    what = traffic_of(PLANS[name].rules[0].exchange, batch, topology, turn)
    for each in (*what.task, *what.rest, *inside_groups(numel, p.between_hosts(p.gossip()), topology)):
        assert each.sent(size).sum(1) == pytest.approx(each.received(size).sum(1), abs=size)


@all_plans
def test_one_rank_only_computes(name):
    found = simulate(PLANS[name], even(), cluster(1))
    assert found.step_s == pytest.approx(0.31)
    assert found.exposed_s == found.exchange_s == sum(found.sent_bytes) == 0


@all_plans
def test_many_are_what_each_is(name):
    alone = [simulate(PLANS[k], even(), cluster(3, ranks=2)).step_s for k in ("allreduce", name)]
    assert simulate_many([PLANS["allreduce"], PLANS[name]], even(), cluster(3, ranks=2)) == pytest.approx(alone)


@all_plans
def test_events_are_in_order_and_within_the_steps(name):
    found = simulate(PLANS[name], even(), cluster(2, ranks=2), slowdown=(1, 1, 2, 1))
    events = found.timeline.events
    assert all(0 <= e.start_s <= e.end_s for e in events)
    assert [e.end_s for e in events] == sorted(e.end_s for e in events)
    assert {e.kind for e in events} >= {"forward", "backward"}


# - Closed forms


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_ring_is_its_closed_form(size):
    found = simulate(
        PLANS["allreduce"],
        even(1, 1_000_000, forward_s=0, backward_s=0, step_s=0),
        cluster(size, 1e6, 0.003),
        overheads=IDEAL,
    )
    assert found.step_s == pytest.approx(2 * (size - 1) / size * 4 + 2 * (size - 1) * 0.003)


def time_of(rounds, topology):
    loads = [Links(topology, IDEAL).load(each.messages, each.repeat) for each in rounds]
    return sum(float(took.total_s[0]) for took in loads)


def test_schedules_are_their_closed_forms():
    whole, topology = np.array([8e6]), cluster(8, 1e6, 0.01)
    assert time_of([ring(whole, 8)], topology) == pytest.approx(14 / 8 * 8 + 14 * 0.01)
    assert time_of(tree(whole, 8), topology) == pytest.approx(6 * 8 + 6 * 0.01)
    assert len(tree(whole, 6)) == 6


@pytest.mark.parametrize(("numel", "hops", "rounds"), [(1000, 1, 1), (100_000, 2, 2), (2_000_000, 14, 1)])
def test_averages_take_as_few_hops_as_the_engine_takes(numel, hops, rounds):
    made = average(np.array([float(numel)]), 8)
    assert len(made) == rounds
    assert sum(each.repeat for each in made) == hops


def test_owners_jam_where_all_send_to_one():
    owners = np.array([[1.0, 0, 0, 0]])
    to_one = DenseExchange(give=np.ones((1, 4)), take=4e6 * owners)
    spread = DenseExchange(give=np.ones((1, 4)), take=np.full((1, 4), 1e6))
    links = Links(cluster(4, 1e6), IDEAL)
    assert links.load(to_one).total_s == pytest.approx(12)
    assert links.load(spread).total_s == pytest.approx(3)
    assert links.load(to_one).bottleneck == ("h0 in",)


def test_racks_share_an_uplink():
    """Of all-to-all, as pairs and as a product: 2 x 2 messages leave each rack, and 2 x 2 come."""
    names = [host.name for host in cluster(4, 1e6).hosts]
    halves = (tuple(names[:2]), tuple(names[2:]))
    racks = tuple(Rack(name=n[0], hosts=n, send_bytes_per_s=1e6, receive_bytes_per_s=5e5) for n in halves)
    links = Links(replace(cluster(4, 1e6), racks=racks), IDEAL)
    everyone = [(a, b) for a in range(4) for b in range(4) if a != b]
    source, target = (np.array(side) for side in zip(*everyone, strict=True))
    pairs = PointToPoint(source=source, target=target, share=np.ones(12), num_bytes=np.array([1e6]))
    product = DenseExchange(give=np.ones((1, 4)), take=np.full((1, 4), 1e6))
    for messages in (pairs, product):
        assert links.load(messages).wire_s == pytest.approx(8)
    inside = PointToPoint(source=np.array([0]), target=np.array([1]), share=np.ones(1), num_bytes=np.array([1e6]))
    assert links.load(inside).wire_s == pytest.approx(1)


def test_one_slow_link_decides_where_it_is_used():
    topology = replace(cluster(4, 1e6), links=(Link(source="h0", target="h2", bytes_per_s=1e3, latency_s=0.5),))
    direct = PointToPoint(source=np.array([0]), target=np.array([2]), share=np.ones(1), num_bytes=np.array([1e3]))
    took = Links(topology, IDEAL).load(direct)
    assert (float(took.wire_s[0]), float(took.latency_s[0]), took.bottleneck) == (1.0, 0.5, ("h0 -> h2",))
    assert simulate(PLANS["allreduce"], even(), topology, overheads=IDEAL).step_s == pytest.approx(
        simulate(PLANS["allreduce"], even(), cluster(4, 1e6), overheads=IDEAL).step_s
    )  # a ring does not use it
    assert simulate(PLANS["bytegrad"], even(), topology, overheads=IDEAL).step_s > 100


@pytest.mark.parametrize(
    ("kind", "degree"), [("ring", 2), ("complete", 7), ("exponential", 3), ("one_peer", 1), ("hypercube", 1)]
)
def test_gossip_is_loaded_by_the_degree_of_its_graph(kind, degree):
    work = even(4, 100_000)
    found = simulate(plan_for(p.gossip(p.Graph(kind=kind))), work, cluster(8, 1e5), overheads=IDEAL)
    assert found.sent_bytes == pytest.approx((degree * 4 * work.numel,) * 8)
    assert found.step_s == pytest.approx(degree * 4 * work.numel / 1e5)


def test_between_hosts_nothing_is_sent_on_one_host():
    topology = cluster(1, 1.0, ranks=4)  # what left the host would take years
    for name in ("allreduce", "onebit"):
        found = simulate(plan_for(p.between_hosts(ROWS[name])), even(), topology)
        assert 0.31 < found.step_s < 1
        assert "wire_s" not in found.counted


# - By hand: two buckets in one lane


TWO = replace(even(2, 500_000, forward_s=1.0, backward_s=2.0, step_s=0.5), name="two")  # 2 MB each, ready at 1 and 2


@pytest.mark.parametrize(
    ("rate", "order", "wanted"),
    [
        (2e6, "ready", 1 + 2 + 1 + 0.5),  # 1 s each: the first is hidden, the second not
        (1e6, "ready", 1 + 2 + 3 + 0.5),  # 2 s each: the second waits for the first, until 1 + 1 + 4
        (4e6, "ready", 1 + 2 + 0.5 + 0.5),
        (2e6, "at_end", 1 + 2 + 2 + 0.5),
    ],
)
def test_two_buckets_in_a_lane(rate, order, wanted):
    plan = SyncPlan(order=order, bucket_bytes=2_000_000)
    found = simulate(plan, TWO, cluster(2, rate), overheads=IDEAL)  # two ranks send each element once
    assert found.step_s == pytest.approx(wanted)
    assert found.exposed_s == pytest.approx(wanted - 3.5)
    assert found.critical_path[-1] == ("optimize", 0.5)


def test_overlap_slows_both():
    plan = SyncPlan(bucket_bytes=2_000_000)
    costs = replace(IDEAL, compute_overlap=2.0, exchange_overlap=1.5)
    # From 2 on both run, the exchange for 1.5 s, in which 0.75 s of backward are done; then 0.25, and 1 s alone.
    found = simulate(plan, TWO, cluster(2, 2e6), overheads=costs)
    assert found.step_s == pytest.approx(1 + 1 + 1.5 + 0.25 + 1 + 0.5)


def test_late_results_have_a_whole_step():
    plan = replace(plan_for(p.delayed(p.allreduce())), bucket_bytes=2_000_000)
    assert simulate(plan, TWO, cluster(2, 2e6), overheads=IDEAL).step_s == pytest.approx(3.5)
    # 8 s of network a step, always busy; each step begins to wait at its first bucket.
    assert simulate(plan, TWO, cluster(2, 0.5e6), overheads=IDEAL).step_s == pytest.approx(8, abs=1.5)


def test_weights_have_a_lane_beside_the_whole_step():
    plan = plan_for(p.gossip(p.Graph(kind="ring")))
    assert simulate(plan, TWO, cluster(2, 4e6), overheads=IDEAL).step_s == pytest.approx(3.5)
    assert simulate(plan, TWO, cluster(2, 1e6), overheads=IDEAL).step_s == pytest.approx(4)
    every = plan_for(p.local_sgd(4))  # exposed, once in 4 steps
    assert simulate(every, TWO, cluster(2, 1e6), overheads=IDEAL).step_s == pytest.approx(3.5 + 4 / 4)


def test_late_states_travel_beside_late_weights_and_states_at_once_before_them():
    """An exchange takes more than half of a step and less than a step: one after the other would not fit into one."""
    far = cluster(2, 1e12, delay_s=0.7)
    step_s = lambda what: simulate(plan_for(what), TWO, far, overheads=IDEAL).step_s  # noqa: E731
    each_s = 4 * (step_s(p.local_sgd(4)) - 3.5)
    assert 3.5 / 2 < each_s < 3.5
    states = {"first": 1, "first_states": ["momentum_buffer"], "second_states": []}
    assert step_s(p.des_loc(4, **states)) == pytest.approx(3.5 + 2 * each_s / 4)
    assert step_s(p.des_loc(4, delay_steps=1, **states)) == pytest.approx(3.5)


def test_the_slowest_is_waited_for_only_where_ranks_wait():
    slow = {"slowdown": (1.0, 1.0, 1.0, 2.0), "overheads": IDEAL}
    fast_network = cluster(4, 1e12)
    for name in ("allreduce", "gossip", "local_sgd"):
        assert simulate(PLANS[name], even(), fast_network, **slow).step_s == pytest.approx(0.62, rel=1e-3)
    stale = simulate(PLANS["stale-free"], even(), fast_network, **slow)
    assert stale.step_s == pytest.approx(0.6)  # and owners step beside it
    assert simulate(PLANS["async_average"], even(), fast_network, **slow).step_s == pytest.approx(4 / (3.5 / 0.31))
    crowded = cluster(2, 1e12, ranks=2, cpu_share=1.0)  # two ranks on one CPU
    assert simulate(PLANS["allreduce"], even(), crowded, overheads=IDEAL).step_s == pytest.approx(0.62, rel=1e-3)


def test_a_slow_rank_sends_as_often_as_the_fastest_where_its_period_follows_that():
    """At half the speed it makes half the steps of a period, or as many in twice the time: 4 changes to 3 1/2."""
    slow = {"slowdown": (1.0, 1.0, 1.0, 2.0), "overheads": IDEAL}
    scaled, own = (
        np.array(
            simulate(plan_for(p.halos(8, region_ranks=2, scaled=each)), even(), cluster(4, 1e12), **slow).sent_bytes
        )
        for each in (True, False)
    )
    np.testing.assert_allclose(scaled, own * 8 / 7)


@pytest.mark.parametrize("name", ["allreduce", "bytegrad", "powersgd"])
def test_ranks_that_share_cpus_work_longer_for_exchanges(name):
    """Four ranks on two CPUs: half the speed in all that exchanges compute; the network is as before.

    Computing is as before where nothing is hidden behind it, and slower else (`test_core_sharing.py`).
    """
    base = Overheads()
    coefficients = base.coefficients()
    coefficients[
        [k for k, key in enumerate(KEYS) if key not in ("compute_s", "wire_s", "latency_s", "loopback_bytes")]
    ] *= 2
    shared, own = replace(cluster(4), num_cpus=2.0), cluster(4)
    twice = replace(base.with_coefficients(coefficients), message_cpu_s=2 * base.message_cpu_s)
    exposed = replace(PLANS[name], order="at_end")
    found = simulate(exposed, even(), shared)
    assert found.step_s == pytest.approx(simulate(exposed, even(), own, overheads=twice).step_s)
    assert (
        simulate(PLANS[name], even(), shared).step_s * CLOSE
        >= simulate(PLANS[name], even(), own, overheads=twice).step_s
    )
    counted = sum(base.coefficients()[KEYS.index(key)] * amount for key, amount in found.counted.items())
    assert counted == pytest.approx(found.step_s)
    assert (
        simulate(PLANS[name], even(), replace(own, num_cpus=12.0)).step_s == simulate(PLANS[name], even(), own).step_s
    )


def test_owners_divide_the_optimizer():
    found = simulate(PLANS["sharded_optimizer"], even(8, 10_000, step_s=0.4), cluster(4, 1e12), overheads=IDEAL)
    assert found.step_s == pytest.approx(0.3 + 0.4 / 4, rel=1e-3)


def test_a_table_with_sparse_gradients_costs_a_server_nothing():
    def served_s(num_rows):
        table = replace(even().tensors[-1], shape=(num_rows, 8), sparse_rows=4.0)
        workload = replace(even(2, step_s=0.0), tensors=(*even(2).tensors, table))
        served = prepare(plan_for(p.bounded_staleness(0)), context_for(workload, cluster(2), None, ()), 1 << 20).served
        return 0.0 if served is None else served.seconds

    assert 0 < served_s(1_000_000) == served_s(1_000)


@pytest.mark.parametrize("size", [4, 16, 64])
def test_owners_of_slices_take_no_longer_than_an_all_reduce(size):
    """VGG16, with most in one matrix, where the network decides; with whole parameters its owner is the slowest."""
    workload, topology = workload_named("vgg16", 0.05), cluster(size, 1.25e7, 1e-4)
    plans = [plan_for(p.sharded_optimizer(cut=cut)) for cut in ("auto", "rows", "whole")]
    cut_s, rows_s, whole_s, exact_s = simulate_many([*plans, PLANS["allreduce"]], workload, topology)
    assert max(cut_s, rows_s) <= 1.05 * exact_s
    assert whole_s > 2 * exact_s


def test_makespan_counts_steps():
    found = simulate(PLANS["allreduce"], even(), cluster(2), steps=10)
    assert found.makespan_s == pytest.approx(10 * found.step_s)


def test_thousands_of_ranks():
    topology = cluster(512, 1.25e9, 1e-5, ranks=8)
    for name in ("allreduce", "bytegrad", "sharded_optimizer", "gossip", "local_sgd", "topk", "hierarchical"):
        found = simulate(PLANS[name], even(20, 1_000_000), topology)
        assert found.step_s > 0.31
        assert len(found.sent_bytes) == 4096


# - What is refused


def test_own_algorithms_are_refused():
    plan = SyncPlan(rules=(Rule(exchange=Custom(name="mine")),))
    with pytest.raises(ValueError, match="only it knows what it sends"):
        simulate(plan, even(), cluster(2))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="3 bandwidths, but there are 2 ranks"):
        simulate(plan_for(p.sharded_optimizer(bandwidths=(1.0, 1.0, 1.0))), even(), cluster(2))
    with pytest.raises(ValueError, match="1 factors"):
        simulate(PLANS["allreduce"], even(), cluster(2), slowdown=(1.0,))
    with pytest.raises(ValueError, match="-1 steps"):
        simulate(PLANS["allreduce"], even(), cluster(2), steps=-1)
    with pytest.raises(ValueError, match="at least 1"):
        Overheads(compute_overlap=0.5)
    with pytest.raises(ValueError, match="negative"):
        Overheads(message_s=-1.0)
    with pytest.raises(ValueError, match="a time for each codec"):
        Overheads(encode_s={"qsgd": 1.0})
    work = even()
    odd = replace(work, tensors=(replace(work.tensors[0], dtype="int8"),))
    with pytest.raises(ValueError, match="dtype 'int8'"):
        simulate(PLANS["allreduce"], odd, cluster(2))


def test_costs_survive_json():
    costs = replace(Overheads(), message_s=1e-5, provenance="test")
    assert from_json(Overheads, to_json(costs)) == costs
