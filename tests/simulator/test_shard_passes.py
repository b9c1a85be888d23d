"""Passes of sharded models: weights are waited for before they are used, and what that means for predicted steps."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import cluster, even, plan_for

import pliant as p
from pliant.simulator import IDEAL, KEYS, CostFeatures, simulate
from pliant.simulator.prepared import prepare
from pliant.simulator.simulate import BUCKET_BYTES, context_for, run
from pliant.simulator.turns import num_turns
from pliant.spec import Sharded, Workload
from pliant.spec.workload import ROOT_GROUP

PLANS = {
    "torch's own": p.sharded(),
    "torch's gathers": p.sharded(gradients="allreduce"),
    "exact": p.sharded(gradients="allreduce", weights="allreduce"),
    "exact, once": p.sharded(gradients="allreduce", weights="allreduce", regather=False),
    "int8": p.sharded(gradients="bytegrad", weights="bytegrad"),
    "int8, once": p.sharded(gradients="bytegrad", weights="bytegrad", regather=False),
    "differences": p.sharded(gradients="int4", weights="differences(int4)"),
}
RATES = (1e6, 1e7, 1e8, 1e9, 1e12)
CLOSE = 1 + 1e-9
all_plans = pytest.mark.parametrize("name", PLANS)


def blocks(num_blocks=4, num_shards=4, **times) -> Workload:
    """Return equal blocks of two tensors each, and a root whose gradient is ready last."""
    whole = even(2 * num_blocks + 1, 40_000, **times)
    names = [f"blocks.{num_blocks - 1 - k // 2}" for k in range(2 * num_blocks)] + [ROOT_GROUP]
    tensors = tuple(replace(t, group=name) for t, name in zip(whole.tensors, names, strict=True))
    return replace(whole, tensors=tensors, num_shards=num_shards)


def predicted(name, rate=1e8, **more):
    return simulate(plan_for(PLANS[name]), blocks(), cluster(4, rate), **more)


def spans(found, start):
    """Return when exchanges whose names begin so began, and when they ended."""
    return [(i.start_s, i.end_s) for i in found.stepper.clock.items if i.label.startswith(start)]


@all_plans
def test_exchanges_that_take_no_time_cost_nothing(name):
    assert predicted(name, 1e30, overheads=IDEAL).step_s == pytest.approx(0.31, rel=1e-6)


@all_plans
@pytest.mark.parametrize("rate", RATES)
def test_a_step_is_at_least_computing_and_what_is_on_the_wire(name, rate):
    found = predicted(name, rate)
    used = [found.stepper.exchanged[item.row] for item in found.stepper.clock.items]
    on_wire_s = sum(each.seconds * each.wire_share for each in used)
    assert found.step_s * CLOSE >= max(0.31, on_wire_s, *(each.seconds for each in used))
    assert on_wire_s > 0


@pytest.mark.parametrize(("once", "twice"), [("exact, once", "exact"), ("int8, once", "int8")])
@pytest.mark.parametrize("rate", RATES)
def test_to_gather_once_is_never_slower(once, twice, rate):
    assert predicted(once, rate).step_s <= predicted(twice, rate).step_s * CLOSE


@all_plans
def test_more_rate_never_predicts_a_longer_step(name):
    steps_s = [predicted(name, rate).step_s for rate in np.geomspace(1e6, 1e11, 16)]
    assert all(faster <= slower * CLOSE for slower, faster in itertools.pairwise(steps_s))


@all_plans
@pytest.mark.parametrize("rate", [1e7, 1e9])
def test_counted_quantities_sum_to_the_step(name, rate):
    features = CostFeatures(blocks(), cluster(4, rate))
    counts = features.counts([plan_for(PLANS[name])], features.coefficients)
    assert float(counts[0] @ features.coefficients) == pytest.approx(predicted(name, rate).step_s)


@pytest.mark.parametrize("rate", [1e6, 1e7])
def test_ranks_leave_by_two_means_that_go_around_the_ring_while_nothing_computes(rate):
    features, size = CostFeatures(blocks(), cluster(4, rate)), 4 * sum(t.numel for t in blocks().tensors)
    assert features.leaving_s() == pytest.approx(2 * 1.5 * size / rate, rel=0.1)


def test_forward_waits_for_each_blocks_weights_while_the_next_ones_come():
    """A group computes when its gather has ended, and the next gather is in the queue before it does."""
    found = predicted("exact", 1e6)
    gathers = spans(found, "weights of")
    forward = [s for s in found.stepper.clock.segments if s.kind == "forward"]
    assert len(gathers) == len(forward) == 5
    for (_, ready_s), segment in zip(gathers, forward, strict=True):
        assert segment.start_s >= ready_s
    for (start_s, _), segment in zip(gathers[1:], forward, strict=False):
        assert start_s <= segment.start_s


def test_the_roots_weights_are_gathered_first_and_once():
    found = predicted("exact")
    assert found.stepper.clock.items[0].label == "weights of bucket 4"
    again = {item.label for item in found.stepper.clock.items if item.label.startswith("weights again")}
    assert again == {f"weights again of bucket {k}" for k in range(4)}


@pytest.mark.parametrize("name", ["exact", "int8, once"])
def test_weights_of_backward_do_not_wait_for_gradients(name):
    """A block's weights are gathered again, or decoded, beside the gradients of the block before."""
    found = predicted(name, 1e6)
    gradients, again = spans(found, "gradients of"), spans(found, "weights again of")
    met = [a < d and c < b for (a, b), (c, d) in itertools.product(gradients, again) if a < b and c < d]
    assert any(met)


def test_torchs_own_exchanges_hide_nothing():
    found = predicted("torch's own", 1e7)
    assert found.exposed_s == pytest.approx(found.exchange_s)
    assert found.compute_s == pytest.approx(0.31)


@pytest.mark.parametrize("node", [p.sharded(gradients="int4"), p.bytegrad()])
def test_gradients_of_shards_do_not_wait_for_the_end_of_backward(node):
    """The engine refuses it; exchanges at the end would be lost among those that come before."""
    plan = replace(plan_for(node), order="at_end")
    with pytest.raises(ValueError, match="use order='ready'"):
        simulate(plan, blocks(num_shards=2), cluster(2, ranks=2))


@pytest.mark.parametrize("replicas", ["allreduce", "bytegrad"])
def test_replicas_of_all_shards_exchange_side_by_side(replicas):
    """So their delays pass once, however many ranks share a model; hosts of one rank each hold all of it."""

    def delays_s(num_shards):
        topology = cluster(2, 1e30, 0.05, ranks=num_shards)
        context = context_for(blocks(num_shards=num_shards), topology, IDEAL, ())
        gradients = prepare(plan_for(p.sharded(replicas=replicas)), context, BUCKET_BYTES).gradients
        return sum(each.seconds for _, _, each in gradients if each.label.startswith("bucket"))

    assert delays_s(2) == pytest.approx(delays_s(1), rel=1e-6)
    assert delays_s(1) >= 0.1


@pytest.mark.parametrize("what", [p.sharded(gradients="int4"), p.sharded(weights="bytegrad")])
def test_receives_of_coded_shards_stand_on_cpus_alone(what):
    """An accelerator, whose messages are staged, waits for the way back as well."""
    on_cpu, staged = (
        simulate(plan_for(what), blocks(), cluster(4, 1e30, 0.05), overheads=replace(IDEAL, staging_bytes_per_s=rate))
        for rate in (0.0, 1e15)
    )
    assert staged.step_s >= on_cpu.step_s + 0.049


@pytest.mark.parametrize(("num_shards", "turns"), [(0, 1), (4, 1), (2, 2), (1, 3), (8, 1)])
def test_replicas_take_turns_by_their_own_number_not_that_of_hosts(num_shards, turns):
    """Of eight ranks on two hosts; if nobody knows who shares a model, the ranks of a host do."""
    context = context_for(blocks(num_shards=num_shards), cluster(2, ranks=4), IDEAL, ())
    assert num_turns(Sharded(replicas=p.gossip()), context) == turns


@pytest.mark.parametrize("gradients", [None, "bytegrad"])
def test_replicas_that_are_left_to_torch_send_what_an_exact_average_sends(gradients):
    torchs, exact = p.sharded(gradients=gradients), p.sharded(gradients=gradients, replicas="allreduce")
    found = [simulate(plan_for(node), blocks(num_shards=2), cluster(2, ranks=2)) for node in (torchs, exact)]
    assert found[0].sent_bytes == found[1].sent_bytes


def test_traces_show_the_parts():
    names = {event.name for event in predicted("int8").timeline.events if event.kind == "exchange"}
    assert {"weights of bucket 0", "weights again of bucket 0", "gradients of bucket 0", "findings"} <= names


@all_plans
def test_bytes_are_those_of_the_parts(name):
    prepared = prepare(plan_for(PLANS[name]), context_for(blocks(), cluster(4), None, ()), BUCKET_BYTES)
    shards = prepared.shards
    parts = [*shards.scatters.values(), *(e for g in shards.groups for e in (*g.before_forward, *g.before_backward))]
    assert run(prepared, 0).sent_bytes == tuple(sum(each.of.sent[each.index] for each in parts).tolist())


def test_coded_parts_of_more_than_a_piece_have_a_message_for_each():
    """A part of 786,432 elements goes in three pieces of 262,144."""
    workload = blocks()
    large = replace(workload, tensors=tuple(replace(t, shape=(4 * 786_432 // 8, 4)) for t in workload.tensors))
    found = simulate(plan_for(PLANS["int8, once"]), large, cluster(4))
    handled = {e.label: e.of for e in found.stepper.exchanged}["weights of bucket 0"]
    assert handled.counts[0, KEYS.index("messages")] == 3 * 6
