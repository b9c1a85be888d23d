"""Slow start: the formula beside windows one by one, and laws of what it adds to rounds, schedules and steps."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import pliant as p
from pliant.algorithms.plans import plan_of
from pliant.comm.striping import Striping
from pliant.netmodel import (
    IDEAL,
    DenseExchange,
    Links,
    OpenedPaths,
    Overheads,
    PointToPoint,
    RankMatrix,
    Together,
    in_turn_s,
    retransmission_timeout_s,
    slow_start_s,
)
from pliant.netmodel.slow_start import INITIAL_WINDOW_BYTES
from pliant.recsys import Frequencies, Rates, expected_traffic, step_cost
from pliant.schedules import Collective, candidates, predict_cost
from pliant.schedules.dense import dense_merged, owners_s
from pliant.simulator import simulate
from pliant.spec import EmbeddingPlan, Host, Link, Move, Schedule, Table, TableLayout, TensorSpec, Topology, Workload

SIZES = st.floats(1, 1e9)
RATES = st.floats(1e4, 1e10)
TRIPS = st.floats(1e-5, 1.0)
PAUSES = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, np.inf])
CLOSE = 1 + 1e-9


def one_by_one_s(num_bytes, rate, trip_s, connections, pause_s, window_bytes):
    """Return what `slow_start_s` says, by sending window after window."""
    largest = connections * max(window_bytes, 1.0)
    least = min(connections * INITIAL_WINDOW_BYTES, largest)
    window = least
    while window < min(num_bytes, rate * trip_s) and window < largest:
        window = min(2 * window, largest)
    left_s = pause_s - (trip_s + 0.2)
    while left_s > 0 and window > least:
        window, left_s = max(window / 2, least), left_s - (trip_s + 0.2)
    lost_s, left = 0.0, num_bytes
    while left > window * (1 + 1e-12):
        left -= window
        lost_s += max(trip_s - window / rate, 0.0)
        window = min(2 * window, largest)
    return lost_s


@given(SIZES, RATES, TRIPS, st.integers(1, 32), PAUSES, st.sampled_from([2e4, 2.7e6, np.inf]))
def test_the_formula_is_what_windows_lose_one_by_one(num_bytes, rate, trip_s, connections, pause_s, window_bytes):
    num_bytes = min(num_bytes, 100 * connections * min(window_bytes, 1e7))
    found = slow_start_s(num_bytes, rate, trip_s, connections=connections, pause_s=pause_s, window_bytes=window_bytes)
    expected = one_by_one_s(num_bytes, rate, trip_s, connections, pause_s, window_bytes)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9 + 1e-9 * num_bytes / rate)


@given(SIZES, RATES, TRIPS, st.floats(1, 100), st.integers(1, 32), st.sampled_from([1e5, np.inf]))
def test_more_bytes_and_longer_trips_never_cost_less_and_more_connections_never_more(
    num_bytes, rate, trip_s, factor, connections, window_bytes
):
    def lost_s(size, trip_s, connections):
        return slow_start_s(size, rate, trip_s, connections=connections, window_bytes=window_bytes)

    found, slack_s = lost_s(num_bytes, trip_s, connections), 1e-9 * (num_bytes / rate + trip_s)
    assert found >= 0
    assert found <= lost_s(factor * num_bytes, trip_s, connections) + slack_s * factor
    assert found <= lost_s(num_bytes, factor * trip_s, connections) + slack_s * factor
    assert found + slack_s >= lost_s(num_bytes, trip_s, connections + 1)


@given(SIZES, RATES, TRIPS, PAUSES, PAUSES)
def test_a_longer_pause_never_costs_less(num_bytes, rate, trip_s, a, b):
    shorter, longer = (slow_start_s(num_bytes, rate, trip_s, pause_s=pause_s) for pause_s in sorted((a, b)))
    assert shorter <= longer * CLOSE + 1e-9 * num_bytes / rate


def test_nothing_is_lost_where_the_first_windows_fill_the_path_or_it_is_in_use():
    rates = np.logspace(4, 9, 50)
    trips_s = 8 * INITIAL_WINDOW_BYTES / rates
    assert not slow_start_s(1e9, rates, trips_s, connections=8).any()
    assert not slow_start_s(1e9, rates, 100 * trips_s, pause_s=0.0).any()
    assert not slow_start_s(1e9, rates, 100 * trips_s, initial_bytes=1e30).any()
    assert slow_start_s(1e9, rates, 1.01 * trips_s, connections=8).all()


def test_a_window_is_halved_for_each_timeout_of_a_pause():
    trip_s, size = 0.3, 64.0 * INITIAL_WINDOW_BYTES
    timeout_s = float(retransmission_timeout_s(trip_s))
    lost_s = [float(slow_start_s(size, 1e12, trip_s, pause_s=(k + 0.5) * timeout_s)) for k in range(9)]
    assert lost_s == pytest.approx([trip_s * k for k in (0, 1, 2, 3, 4, 5, 6, 6, 6)], rel=1e-3)


def hosts(num, rate=1.25e7, delay_s=0.05, links=(), **more):
    found = tuple(
        Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay_s) for k in range(num)
    )
    return Topology(hosts=found, links=links, **more)


SLOW = Link(source="h0", target="h1", bytes_per_s=2e5, latency_s=0.2)
EVERY = pytest.mark.parametrize("links", [(), (SLOW,)], ids=["hosts", "links"])
FREE = replace(IDEAL, initial_window_bytes=INITIAL_WINDOW_BYTES)


def all_forms(num, num_bytes):
    """Return the same bytes between all pairs of ranks, in every form of messages."""
    source, target = np.nonzero(1 - np.eye(num))
    size, each = np.array([num_bytes]), np.ones(len(source))
    named = PointToPoint(source=source, target=target, share=each, num_bytes=size)
    rest = PointToPoint(source=source[3:], target=target[3:], share=each[3:], num_bytes=size)
    first = PointToPoint(source=source[:3], target=target[:3], share=each[:3], num_bytes=size)
    whole = np.ones((1, num, num))
    return {
        "named": named,
        "dense": DenseExchange(give=np.full((1, num), num_bytes), take=np.ones((1, num))),
        "together": Together(parts=(first, rest)),
        "matrix": RankMatrix(num_bytes=num_bytes * whole, num_messages=whole),
    }


@EVERY
@pytest.mark.parametrize("connections", [1, 8])
@given(num_bytes=st.sampled_from([2e3, 1e5, 3e6]), pause_s=PAUSES)
def test_all_forms_of_messages_start_alike(links, connections, num_bytes, pause_s):
    network = Links(hosts(4, links=links, connections=connections), FREE)
    found = {name: network.load(each, 1, pause_s).start_s[0] for name, each in all_forms(4, num_bytes).items()}
    assert list(found.values()) == pytest.approx([found["named"]] * len(found), abs=1e-12), found


def test_one_message_loses_what_the_formula_says():
    message = PointToPoint(source=np.array([0]), target=np.array([1]), share=np.ones(1), num_bytes=np.array([1e6]))
    for connections in (1, 4):
        network = Links(hosts(2, connections=connections), Overheads())
        rate = 1.25e7 / network.overheads.wire_factor
        lost_s = slow_start_s(1e6, rate, 0.1, connections=connections)
        assert network.load(message, 7, np.inf).start_s == pytest.approx(lost_s)  # of seven rounds the first
        assert lost_s > 0.1
    assert not Links(hosts(2, restarts_slowly=False)).load(message, 1, np.inf).start_s.any()
    assert not Links(hosts(2, delay_s=5e-4)).load(message, 1, np.inf).start_s.any()  # as in one building
    assert Links(hosts(2, window_bytes=1e5)).load(message).total_s > Links(hosts(2)).load(message).total_s + 0.5


@EVERY
def test_without_a_pause_everything_is_as_it_was(links):
    for each in all_forms(4, 1e6).values():
        took = Links(hosts(4, links=links), FREE).load(each)
        assert took.total_s == pytest.approx(took.busy_s + took.latency_s + took.message_s, rel=1e-12)


@given(st.integers(1, 1 << 24), st.integers(1, 32))
def test_a_message_opens_the_windows_of_as_many_connections_as_it_takes(num_bytes, connections):
    message = PointToPoint(
        source=np.array([0]), target=np.array([1]), share=np.ones(1), num_bytes=np.array([float(num_bytes)])
    )
    taken = Striping(2, connections).count(num_bytes)
    found = Links(hosts(2, connections=connections), FREE).load(message, 1, np.inf).start_s
    assert found == pytest.approx(slow_start_s(num_bytes, 1.25e7, 0.1, connections=taken))


def lost_in_order_s(sizes, rate, trip_s, connection_of):
    """Return what messages lose that follow one another, each on a connection whose window grows by what is acked."""
    windows, lost_s = [float(INITIAL_WINDOW_BYTES)] * 8, []
    for turn, size in enumerate(sizes):
        k, left = connection_of(turn, size), float(size)
        lost_s.append(0.0)
        while left > windows[k]:
            lost_s[-1] += max(trip_s - windows[k] / rate, 0.0)
            left, windows[k] = left - windows[k], 2 * windows[k]
        windows[k] += left
    return lost_s


@pytest.mark.parametrize("sizes", [[128 << 10] * 5, [256 << 10, 20 << 10, 200 << 10, 100 << 10]])
def test_messages_that_are_not_cut_follow_one_another_on_an_open_connection(sizes):
    rate, trip_s, cut = 6.25e6, 0.25, Striping(2, 8)
    pauses_s = [np.inf] + [trip_s] * (len(sizes) - 1)
    predicted_s = [slow_start_s(size, rate, trip_s, pause_s=s) for size, s in zip(sizes, pauses_s, strict=True)]

    def ours(_, size):
        ((k, _),) = cut.placed(torch.empty(size, dtype=torch.uint8), 0)
        return k

    found_s = lost_in_order_s(sizes, rate, trip_s, ours)
    assert found_s == pytest.approx(predicted_s)
    assert found_s[0] > 0
    assert all(lost_s > trip_s / 2 for lost_s in lost_in_order_s(sizes, rate, trip_s, lambda turn, _: turn))


def test_slices_of_a_ring_are_those_of_the_whole_vector():
    num, size, ranks = 4, 2.0**20, np.arange(4)
    around = PointToPoint(
        source=ranks, target=(ranks + 1) % num, share=np.full(num, 0.25), num_bytes=np.array([size]), cyclic=True
    )
    found = Links(hosts(num, connections=8), FREE).load(around, 2 * (num - 1), np.inf).start_s
    assert found == pytest.approx(slow_start_s(size / num, 1.25e7, 0.1, connections=Striping(num, 8).count(int(size))))
    apart = Links(hosts(num, connections=8), FREE).load(replace(around, cyclic=False), 1, np.inf).start_s
    assert apart == pytest.approx(slow_start_s(size / num, 1.25e7, 0.1, connections=1))
    assert found < apart


def test_later_rounds_pay_only_for_wider_windows():
    there = PointToPoint(source=np.array([0]), target=np.array([1]), share=np.ones(1), num_bytes=np.ones(1))
    back = replace(there, source=there.target, target=there.source)
    opened, start_s = OpenedPaths(), np.array([0.2])
    assert opened.left_s(there, start_s) == 0.2
    assert opened.left_s(there, start_s + 0.1) == pytest.approx(0.1)
    assert opened.left_s(back, start_s) == 0.2
    assert opened.left_s(Together(parts=(there, back)), start_s) == 0
    assert in_turn_s(np.array([0.1, 0.3, 0.2, 0.4])) == pytest.approx([0.1, 0.2, 0, 0.1])


def test_a_schedule_pays_once_for_each_pair():
    moves = tuple((Move(source=0, target=1, block=k, kind="copy"),) for k in range(3))
    schedule = Schedule(name="thrice", num_ranks=2, num_blocks=3, rounds=moves)
    task = Collective(num_ranks=2, block_bytes=(10**6,) * 3, holders=((0,),) * 3, needers=((1,),) * 3)
    warm, cold = (predict_cost(schedule, task, hosts(2), replace(FREE, pause_s=s)) for s in (0.0, 3.0))
    assert cold.total_s - warm.total_s == pytest.approx(float(slow_start_s(1e6, 1.25e7, 0.1, pause_s=3.0)))


def test_owners_pay_once_for_both_ways_over_the_same_pairs():
    warm_s, cold_s = (owners_s(2e6, hosts(2), replace(FREE, pause_s=s)) for s in (0.0, 3.0))
    assert cold_s - warm_s == pytest.approx(float(slow_start_s(1e6, 1.25e7, 0.1, pause_s=3.0)))


def test_all_schedules_of_a_family_take_longer_after_a_pause():
    even = Schedule(name="even", num_ranks=3, num_blocks=6, rounds=())
    merged, uneven = dense_merged(even, 1 << 22), hosts(3, links=(SLOW, replace(SLOW, source="h1", target="h0")))
    warm, cold = (
        {each.name: each.cost.total_s for each in candidates(merged, uneven, replace(FREE, pause_s=s))}
        for s in (0.0, 60.0)
    )
    assert warm.keys() == cold.keys()
    assert all(cold[name] > warm[name] for name in warm)


def step_s(topology, algorithm="allreduce", overheads=None, forward_s=0.5):
    tensors = tuple(
        TensorSpec(name=f"t{k}", shape=(500, 500), dtype="float32", layer="Linear", ready_s=0.1) for k in range(4)
    )
    work = Workload(name="w", tensors=tensors, forward_s=forward_s, backward_s=0.1, step_s=0.0)
    return simulate(plan_of(getattr(p, algorithm)()), work, topology, overheads=overheads).step_s


@pytest.mark.parametrize("algorithm", ["allreduce", "qsgd", "local_sgd"])
def test_steps_with_a_pause_are_longer_on_long_links_and_the_same_in_one_building(algorithm):
    without = replace(Overheads(), initial_window_bytes=1e30)
    near = hosts(4, delay_s=5e-4)
    assert step_s(near, algorithm) == pytest.approx(step_s(near, algorithm, without), rel=1e-12)
    far = hosts(4, delay_s=0.05)
    assert step_s(far, algorithm) > step_s(far, algorithm, without) * 1.001
    assert step_s(replace(far, restarts_slowly=False), algorithm) == step_s(far, algorithm, without)


def test_steps_that_follow_closely_have_open_windows():
    without = replace(Overheads(), initial_window_bytes=1e30)
    far = hosts(4, delay_s=0.05)
    assert step_s(far, forward_s=0.05) == step_s(far, overheads=without, forward_s=0.05)


def test_gradients_of_embeddings_start_slowly_after_the_dense_part():
    table = Table(name="t", num_rows=100_000, dim=64)
    plan = EmbeddingPlan(tables=(table,), layouts=(TableLayout(kind="rows"),), num_ranks=4, batch_size=2000)
    traffic, rates = expected_traffic(plan, Frequencies.uniform([100_000])), Rates(overheads=FREE)

    def gradients_s(dense_s, **more):
        return step_cost(traffic, Links(hosts(4, **more), FREE), rates, dense_s=dense_s).part_s("gradients")

    assert gradients_s(3.0) > gradients_s(0.1) + 0.1
    assert gradients_s(3.0, restarts_slowly=False) == gradients_s(0.1)


def test_ten_thousand_hosts_need_no_table_of_all_pairs():
    num, network = 10_000, Links(hosts(10_000))
    ranks, size = np.arange(num), np.full(4, 1e6)
    around = PointToPoint(source=ranks, target=np.roll(ranks, -1), share=np.full(num, 1 / num), num_bytes=size)
    dense = DenseExchange(give=np.ones((1, num)), take=np.full((4, num), 100.0))
    tracemalloc.start()
    try:
        assert all(network.load(each, 1, np.inf).start_s.shape == (4,) for each in (around, dense))
        assert tracemalloc.get_traced_memory()[1] < num * num  # bytes
    finally:
        tracemalloc.stop()
