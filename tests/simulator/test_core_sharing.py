"""Threads of a rank share its cores: laws of the sharing, and what they mean for predicted steps."""

import itertools
import math
from dataclasses import replace

import pytest
from cases import cluster, even, plan_for
from hypothesis import given, strategies as st

import pliant as p
from pliant.simulator import IDEAL, Overheads, simulate
from pliant.simulator.core_sharing import CoreSharing
from pliant.spec import Host, SyncPlan, Topology
from tables import ALGORITHMS, BETWEEN_STEPS

PLANS = {name: plan_for(algorithm) for name, algorithm in {**ALGORITHMS, **BETWEEN_STEPS}.items()}
SETTLED = [name for name in sorted(ALGORITHMS) if simulate(PLANS[name], even(), cluster(4)).prepared.settled]
"""Plans of which no step's work goes on in the next."""
all_plans = pytest.mark.parametrize("name", sorted(PLANS))
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=3)
CPUS = st.floats(0.1, 8)
CLOSE = 1 + 1e-9


@given(SHARES, CPUS)
def test_no_core_does_the_work_of_two(shares, cpus):
    slower = CoreSharing(cpus=cpus).slowdown(shares)
    assert slower >= 1
    assert sum(shares) / slower <= max(1.0, cpus) * CLOSE


@given(st.lists(st.floats(0, 1), max_size=2), CPUS)
def test_no_core_is_idle_while_a_rank_computes(exchanges, cpus):
    """On a core or less: computing wants all of it, so that all of it is given away."""
    shares = [1.0, *exchanges]
    assert sum(shares) / CoreSharing(cpus=min(cpus, 1.0)).slowdown(shares) == pytest.approx(1.0)


@given(SHARES, CPUS, CPUS)
def test_more_cores_slow_nobody_down(shares, some, others):
    few, many = sorted((some, others))
    assert CoreSharing(cpus=many).slowdown(shares) <= CoreSharing(cpus=few).slowdown(shares) * CLOSE


@given(SHARES)
def test_a_core_for_each_thread_is_enough(shares):
    assert CoreSharing(cpus=float(max(2, len(shares)))).slowdown(shares) == 1
    assert CoreSharing(cpus=math.inf).slowdown(shares) == 1


@given(st.floats(0, 1), CPUS)
def test_a_thread_alone_is_not_slower(share, cpus):
    assert CoreSharing(cpus=cpus).slowdown([share]) == 1


def test_two_that_compute_take_twice_as_long():
    assert CoreSharing(cpus=1.0).slowdown([1.0, 1.0]) == CoreSharing(cpus=0.5).slowdown([1.0, 1.0]) == 2
    assert CoreSharing(cpus=1.5).slowdown([1.0, 1.0]) == pytest.approx(2 / 1.5)
    assert CoreSharing(cpus=1.0).slowdown([1.0, 0.25]) == 1.25


@pytest.mark.parametrize(
    ("num_cpus", "share", "wanted"),
    [(0.0, 0.0, math.inf), (2.0, 0.0, 0.5), (16.0, 0.0, 4.0), (16.0, 0.5, 0.5), (0.0, 3.0, 3.0)],
)
def test_cpus_of_a_rank_are_the_fewest_that_anything_says(num_cpus, share, wanted):
    hosts = (Host(name="a", cpu_share=share), Host(name="b"), Host(name="c", num_ranks=2))
    assert Topology(hosts=hosts, num_cpus=num_cpus).cpus_per_rank == wanted


# - Predicted steps


@all_plans
def test_more_cores_never_predict_a_longer_step(name):
    steps_s = [
        simulate(PLANS[name], even(), replace(cluster(4, 1e8), num_cpus=cpus)).step_s
        for cpus in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
    ]
    steps_s.append(simulate(PLANS[name], even(), cluster(4, 1e8)).step_s)
    assert all(more <= fewer * CLOSE for fewer, more in itertools.pairwise(steps_s))
    assert steps_s[-2] == steps_s[-1]


def _cpu_s(found) -> float:
    """Return the CPU seconds of a step's exchanges, on the share of a core that a rank has."""
    used = [found.stepper.exchanged[item.row] for item in found.stepper.clock.items]
    return sum(float(exchanged.of.cpu_s[exchanged.index]) for exchanged in used) / len(found.stepper.ends_s)


@pytest.mark.parametrize("name", SETTLED)
@pytest.mark.parametrize("rate", [1e7, 1e9])
def test_all_work_of_a_step_takes_its_time(name, rate):
    """Work of exchanges that is hidden from the network is not hidden from the cores: sums of work are a bound."""
    found = simulate(PLANS[name], even(), replace(cluster(4, rate), num_cpus=2.0))
    assert found.step_s * CLOSE >= 0.31 - 0.01 * (1 - found.prepared.step_share) + _cpu_s(found)


def test_hidden_messages_lengthen_backward():
    """Two ranks on one core: backward and its messages share it, though the wire is idle again long before the end.

    Each of the first 7 of 8 buckets has 2 messages each way round the ring: 4, of 1 ms of a core, on half of one.
    """
    costs = replace(IDEAL, message_s=1e-3, message_cpu_s=1e-3)
    plan = SyncPlan(bucket_bytes=1_200_000)
    crowded = simulate(plan, even(), replace(cluster(2, 1e12), num_cpus=1.0), overheads=costs)
    enough = simulate(plan, even(), cluster(2, 1e12), overheads=costs)
    assert enough.step_s == pytest.approx(0.31 + 4e-3, rel=1e-4)  # the last bucket's
    assert crowded.step_s == pytest.approx(0.31 + 8 * 8e-3, rel=1e-4)


def test_bytes_are_felt_on_shared_cores_alone():
    busy = Overheads(byte_cpu_s=1e-8)
    plan = PLANS["allreduce"]
    assert (
        simulate(plan, even(), cluster(4, 1e8), overheads=busy).step_s == simulate(plan, even(), cluster(4, 1e8)).step_s
    )
    crowded = replace(cluster(4, 1e8), num_cpus=2.0)
    assert simulate(plan, even(), crowded, overheads=busy).step_s > simulate(plan, even(), crowded).step_s


def test_a_rank_alone_is_not_slowed_down_by_others():
    alone = cluster(1)
    for name in ("allreduce", "bytegrad", "local_sgd"):
        assert (
            simulate(PLANS[name], even(), replace(alone, num_cpus=1.0)).step_s
            == simulate(PLANS[name], even(), alone).step_s
        )


def test_ranks_at_a_free_pace_share_cores_too():
    plan = plan_for(p.async_average())
    crowded, enough = replace(cluster(4, 1e7), num_cpus=2.0), cluster(4, 1e7)
    assert simulate(plan, even(), crowded).step_s >= simulate(plan, even(), enough).step_s
