"""Clocks of single ranks where links differ: by hand, and message by message."""

import random
from dataclasses import replace

import pytest

import pliant
from pliant.layouts.payloads import payload_bytes
from pliant.simulator import IDEAL, simulate
from pliant.simulator.prepared import prepare
from pliant.simulator.simulate import context_for
from pliant.simulator.skew import step_with_skew_s
from pliant.spec import CodecSpec, Link, Topology
from simulator.cases import cluster, even, plan_for

FAST = 1e15
STEPS = 12


def network(rates, delays=None, num_ranks=3) -> Topology:
    """Hosts without limits, and (source, target) -> rate, and delay."""
    pairs = [
        Link(source=f"h{a}", target=f"h{b}", bytes_per_s=rate, latency_s=(delays or {}).get((a, b), 0.0))
        for (a, b), rate in rates.items()
    ]
    return replace(cluster(num_ranks, FAST), links=tuple(pairs), restarts_slowly=False)


def step_s(plan, work, topology, **more):
    return simulate(plan_for(plan), work, topology, overheads=IDEAL, **more).step_s


def payload_of(work, num_ranks):
    """Bytes in 8 bits of each rank's part of all gradients, of which all have as many."""
    return payload_bytes(CodecSpec(name="minmax8"), work.numel // num_ranks)


@pytest.mark.parametrize("passes", [0.2, 0.9, 1.1, 3.0])
def test_what_a_slow_link_carries_passes_while_others_compute(passes):
    """Its two messages follow one another; the first has come once the last rank has computed and waited for it."""
    work = even(1, 614_400, forward_s=0.02, backward_s=0.03, step_s=0.0)
    slow_s = passes * work.compute_s
    topology = network({(2, 0): payload_of(work, 3) / slow_s})
    assert step_s(pliant.bytegrad(), work, topology) == pytest.approx(
        max(2 * slow_s, work.compute_s + slow_s), rel=1e-3
    )


def test_a_slow_link_both_ways_is_waited_for_twice():
    work = even(1, 614_400, forward_s=0.02, backward_s=0.03, step_s=0.0)
    rate = payload_of(work, 3) / 0.1
    topology = network({(2, 0): rate, (0, 2): rate})
    assert step_s(pliant.bytegrad(), work, topology) == pytest.approx(work.compute_s + 0.2, rel=1e-3)


def test_a_ring_waits_for_its_receivers_and_computing_is_not_hidden():
    """Each rank sends to the one before it. Ranks 1 and 2 are ahead, but 0 has to compute before it asks."""
    work = even(1, 614_400, forward_s=0.02, backward_s=0.03, step_s=0.0)
    topology = network({(1, 0): 4 * work.numel / 3 / 0.1})
    assert step_s(pliant.allreduce(), work, topology) == pytest.approx(work.compute_s + 4 * 0.1, rel=1e-3)


def in_two_rounds(sizes, rates, delays, computes):
    """Step time of messages to owners and back: each leaves after the one before on its link."""
    num_ranks = len(computes)
    begun, free = [0.0] * num_ranks, dict.fromkeys(rates, 0.0)
    ends = []
    for _ in range(STEPS):
        at = [a + b for a, b in zip(begun, computes, strict=True)]
        for size_of in (lambda _, b: sizes[b], lambda a, _: sizes[a]):
            came = list(at)
            for a, b in rates:
                free[a, b] = max(free[a, b], at[a]) + size_of(a, b) / rates[a, b]
                came[b] = max(came[b], free[a, b] + delays[a, b])
            at = came
        begun = at
        ends.append(max(begun))
    return (ends[-1] - ends[STEPS // 2 - 1]) / (STEPS // 2)


@pytest.mark.parametrize("seed", range(12))
def test_sums_in_codes_take_what_they_take_message_by_message(seed):
    rng = random.Random(seed)
    num_ranks = rng.choice([3, 4, 5])
    work = even(1, 614_400, forward_s=0.02, backward_s=0.03, step_s=0.0)
    pairs = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b]
    rates = {pair: 10 ** rng.uniform(5.5, 8) for pair in pairs}
    delays = {pair: rng.choice([0.0, rng.uniform(0, 0.03)]) for pair in pairs}
    slow = [rng.choice([1.0, rng.uniform(1, 3)]) for _ in range(num_ranks)]
    topology = network(rates, delays, num_ranks)
    context = context_for(work, topology, IDEAL, slow)
    prepared = prepare(plan_for(pliant.bytegrad()), context, 1 << 30)
    (up, _) = prepared.gradients[0][2].of.rounds
    sizes = up.messages.take[0]
    wanted = in_two_rounds(sizes, rates, delays, [work.compute_s * each for each in slow])
    assert step_with_skew_s(prepared) == pytest.approx(wanted, rel=0.02)
    assert simulate(plan_for(pliant.bytegrad()), work, topology, overheads=IDEAL, slowdown=slow).step_s == (
        pytest.approx(step_with_skew_s(prepared))
    )


def test_gossip_goes_on_beside_its_neighbours_and_a_slow_link_rests_every_other_turn():
    """On three ranks each asks one neighbour and the other in turn; the exchange has the next step's computing."""
    work = even(1, 614_400, forward_s=0.02, backward_s=0.03, step_s=0.0)
    slow_s = 0.4
    topology = network({(2, 0): 4 * work.numel / slow_s})
    found = step_s(pliant.gossip(), work, topology)
    assert slow_s / 2 <= found < slow_s / 2 + work.compute_s


def test_no_clock_of_its_own_where_all_are_alike_or_too_many_or_weights_wait_for_a_period():
    work = even(1, 614_400)
    slow = {(1, 0): 1e6}
    skewed = [
        step_with_skew_s(prepare(plan_for(plan), context_for(work, topology, IDEAL, ()), 1 << 30))
        for plan, topology in (
            (pliant.bytegrad(), cluster(4)),
            (pliant.bytegrad(), network(slow, num_ranks=17)),
            (pliant.local_sgd(8), network(slow)),
            (pliant.bytegrad(), network(slow, num_ranks=16)),
        )
    ]
    assert skewed[:3] == [None] * 3
    assert skewed[3] is not None


@pytest.mark.parametrize("name", ["bytegrad", "allreduce", "powersgd", "topk", "gossip", "choco", "tasc"])
def test_a_step_is_its_critical_path_and_no_shorter_than_computing(name):
    rng = random.Random(3)
    rates = {(a, b): 10 ** rng.uniform(6, 8) for a in range(4) for b in range(4) if a != b}
    found = simulate(plan_for(pliant.parse(name)), even(), network(rates, num_ranks=4))
    seconds = found.prepared.context.overheads.coefficients()
    counted = [found.counted.get(key, 0.0) for key in pliant.simulator.KEYS]
    assert float(seconds @ counted) == pytest.approx(found.step_s)
    assert sum(s for _, s in found.critical_path) == pytest.approx(found.period * found.step_s)
    assert found.compute_s + found.exposed_s == pytest.approx(found.step_s)
    assert found.step_s >= even().compute_s
