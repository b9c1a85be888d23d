"""Over Gloo a message waits for its receiver's word: what that costs, where it is hidden, and what was measured."""

from dataclasses import replace

import numpy as np
import pytest

import pliant
from pliant.algorithms.by_name import plan_of_text
from pliant.netmodel import KEYS, Overheads
from pliant.netmodel.loads import largest_elsewhere
from pliant.simulator import simulate
from pliant.spec import Link, Match, Rule, SyncPlan, TensorSpec, Topology, Workload
from simulator.cases import cluster, even, plan_for

DELAY_S = 0.05
FREE = Overheads(message_s=0.0, bucket_s=0.0)
FAST = 1e15


SHORT = even(1, 100_000, forward_s=0.01, backward_s=0.02, step_s=0.001)
"""Steps after which no window has closed."""


def exposed_s(plan, topology, workload=SHORT, **more):
    return simulate(plan, workload, topology, overheads=replace(FREE, **more)).exposed_s


@pytest.mark.parametrize(
    ("name", "delays"),
    [
        ("qsgd", 2),  # to owners and back: their receives stand
        ("allreduce(few_rounds=true)", 2),
        ("choco", 1),
        ("topk", 1),
        ("topk(0.1)", 1),
        ("topk(0.9)", 6),  # so many bytes go around a ring
        ("gossip", 1),
        ("gossip(free=true)", 0),
        ("allreduce", 12),  # a ring's six turns, which ask by themselves
    ],
)
def test_a_round_takes_the_way_there_and_the_way_back_unless_receives_stand(name, delays):
    late, near = (exposed_s(plan_for(pliant.parse(name)), cluster(4, FAST, d)) for d in (DELAY_S, 0.0))
    hidden_s = SHORT.compute_s if name in ("choco", "gossip") else 0.0  # the hop is beside the next step's computing
    assert late - near == pytest.approx(max(delays * DELAY_S - hidden_s, 0.0), abs=2e-3)


@pytest.mark.parametrize(("rows", "delays"), [(30, 1 + 2 + 2), (30_000, 1 + 6 + 6)])
def test_few_sparse_rows_go_straight_and_many_around_a_ring(rows, delays):
    """Numbers of rows are told in a delay, since their receives stand; indices and values have sizes of their own."""
    table = TensorSpec(name="words", shape=(10**6, 8), dtype="float32", layer="", ready_s=0.02, sparse_rows=rows)
    work = replace(SHORT, tensors=(table,))
    late, near = (exposed_s(plan_for(pliant.allreduce()), cluster(4, FAST, d), work) for d in (DELAY_S, 0.0))
    assert late - near == pytest.approx(delays * DELAY_S, abs=2e-3)


@pytest.mark.parametrize("more", [{"nccl": "pcie"}, {"staging_bytes_per_s": 1e12}])
def test_nccl_has_no_word_to_wait_for_and_what_is_staged_stands_as_well(more):
    plan = plan_for(pliant.qsgd())
    late, near = (exposed_s(plan, cluster(4, FAST, d), **more) for d in (DELAY_S, 0.0))
    assert late - near == pytest.approx(2 * DELAY_S, abs=2e-3)


@pytest.mark.parametrize("links", [False, True])
def test_the_longest_round_trip_counts_not_the_longest_way_twice(links):
    delays = (0.01, 0.02, 0.04)
    topology = cluster(3, FAST)
    hosts = tuple(replace(host, delay_s=d) for host, d in zip(topology.hosts, delays, strict=True))
    named = (Link(source="h0", target="h1", bytes_per_s=0.0, latency_s=0.5),) if links else ()
    topology = Topology(hosts=hosts, links=named)
    plan = plan_for(pliant.sharded_optimizer())  # gradients to owners, and weights back; norms have receives that stand
    late, near = (exposed_s(plan, each) for each in (topology, cluster(3, FAST)))
    longest_s, way_s = (0.5 + 0.01, 0.5) if links else (0.04 + 0.02, 0.04)  # h1 -> h0 keeps the delay of h0
    assert late - near == pytest.approx(2 * longest_s + way_s, abs=2e-3)


def test_parts_of_a_bucket_share_their_delays_and_nothing_else():
    """Codes and small parameters of one bucket wait together, as the engine's stages do; bytes add up."""
    workload = SHORT
    small = TensorSpec(name="bias", shape=(4000,), dtype="float32", layer="Linear", ready_s=0.02)
    both = replace(workload, tensors=(*workload.tensors, small))
    exact, codes = pliant.parse("allreduce(few_rounds=true)"), pliant.parse("int4")
    mixed = SyncPlan(rules=(Rule(match=Match(max_numel=8192), exchange=exact), Rule(exchange=codes)))
    alone = {
        d: [
            exposed_s(plan_for(codes), cluster(4, 12.5e6, d), workload),
            exposed_s(plan_for(exact), cluster(4, 12.5e6, d), replace(workload, tensors=(small,))),
        ]
        for d in (0.0, DELAY_S)
    }
    for d in (0.0, DELAY_S):
        together = exposed_s(mixed, cluster(4, 12.5e6, d), both)
        assert together == pytest.approx(sum(alone[d]) - 2 * d, abs=2e-3)
    counted = simulate(mixed, both, cluster(4, 12.5e6, DELAY_S), overheads=FREE)
    seconds = sum(FREE.coefficients()[KEYS.index(key)] * count for key, count in counted.counted.items())
    assert seconds == pytest.approx(counted.step_s * counted.period, rel=1e-6)  # fits see what is left of the delays


@pytest.mark.parametrize(
    ("name", "measured_s"), [("bf16", 1.512), ("onebit", 0.285), ("int4", 0.287), ("qsgd(bits=4)", 0.283)]
)
def test_steps_over_a_long_link_are_those_that_were_measured(name, measured_s):
    """2026-11-27, four emulated hosts at 1 Gbit/s and 250 ms, a perceptron of 0.33 M parameters, eight steps."""
    shapes = ((10,), (10, 256), (256,), (256, 640), (640,), (640, 256))
    tensors = tuple(
        TensorSpec(name=f"{k}", shape=shape, dtype="float32", layer="Linear", ready_s=1e-3 * (k + 1))
        for k, shape in enumerate(shapes)
    )
    workload = Workload(name="perceptron", tensors=tensors, forward_s=4e-3, backward_s=8e-3, step_s=1e-3)
    found = simulate(plan_of_text(name), workload, cluster(4, 1.25e8, 0.125))
    assert found.step_s == pytest.approx(measured_s, rel=0.08)


def test_the_largest_of_all_others():
    chance = np.random.default_rng(0)
    for shape in ((5, 6), (3, 1), (2, 2)):
        x = chance.integers(0, 4, shape).astype(float)
        others = [[max([0.0, *np.delete(row, i)]) for i in range(len(row))] for row in x]
        np.testing.assert_array_equal(largest_elsewhere(x), others)
