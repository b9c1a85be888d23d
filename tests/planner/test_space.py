"""Every plan that the space offers is valid, within its budget, and comes from its parents."""

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import pliant
from planner.examples import FLAT, TWO_A_HOST, WORKLOAD
from planner.made_up_ratios import table
from pliant.algorithms import parse, plan_of
from pliant.netmodel import Overheads
from pliant.planner import BASELINES, Gene, Genome, Quality, Space, schedules
from pliant.planner.schedules import with_schedules
from pliant.schedules.dense import size_at
from pliant.simulator import scheduled, scheduled_codes, simulate
from pliant.simulator.layout import itemsize
from pliant.spec import (
    BlockSparse,
    Host,
    Link,
    Placement,
    Schedule,
    TensorSpec,
    Topology,
    Workload,
    from_json,
    to_json,
)
from pliant.spec.plan import SyncPlan

__all__ = ["table"]

EVERYTHING = Space(WORKLOAD, TWO_A_HOST, Quality(budget=10))


@given(st.integers(0, 10**6))
def test_samples_mutants_and_children_are_valid_and_inside(seed):
    rng = random.Random(seed)
    one, other = EVERYTHING.sample(rng), EVERYTHING.sample(rng)
    for genes in (one, other, EVERYTHING.mutate(one, rng), EVERYTHING.cross(one, other, rng)):
        assert genes in EVERYTHING
        plan = genes.plan()
        assert from_json(SyncPlan, to_json(plan)) == plan


def test_a_mutant_differs_from_its_parent_in_one_thing():
    rng = random.Random(0)
    for _ in range(200):
        parent = EVERYTHING.sample(rng)
        child = EVERYTHING.mutate(parent, rng)
        if child.base.between_steps != parent.base.between_steps:
            continue  # then buckets lose, or get back, their meaning
        fields = ("base", "layers", "bucket_bytes", "chunk_bytes", "at_end", "by_hosts")
        changed = {f for f in fields if getattr(parent, f) != getattr(child, f)}
        if "base" in changed:  # what a layer says or a switch does may then go without saying
            changed -= {"layers", "by_hosts"}
        assert len(changed) <= 1


@given(st.integers(0, 10**6))
def test_exact_means_exact(seed):
    space = Space(WORKLOAD, FLAT, Quality())
    genes = space.sample(random.Random(seed))
    assert all(g.exact for g in genes.genes)
    assert not genes.by_hosts


def test_classes_of_layers_are_those_that_weigh():
    assert EVERYTHING.layers == ("Linear", "Conv2d")


def test_what_can_be_enumerated_is_inside_and_different():
    space = Space(WORKLOAD, FLAT, Quality(budget=1.2))
    found = list(space.enumerate())
    assert len({genes.plan().hash for genes in found}) == len(found) > 50
    assert all(genes in space for genes in found)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("ddp", pliant.allreduce()),
        ("ddp-bf16", pliant.bf16()),
        ("zero-owner", pliant.sharded_optimizer()),
        ("bytegrad", pliant.bytegrad()),
        ("onebit", pliant.onebit()),
        ("powersgd", pliant.powersgd()),
        ("topk", pliant.topk()),
        ("local_sgd", pliant.local_sgd()),
        ("gossip", pliant.gossip()),
    ],
)
def test_builders_are_the_named_algorithms(name, algorithm):
    assert BASELINES[name].plan().rules[-1] == plan_of(algorithm).rules[-1]


def test_all_builders_differ():
    assert len({genes.plan().hash for genes in BASELINES.values()}) == len(BASELINES) == 14


def test_plans_that_mix_what_cannot_be_mixed_are_refused():
    exact, gossip = Gene("exact", {"bits": 32}), Gene("gossip", {"graph": "ring", "every": 1})
    with pytest.raises(ValueError, match="one class of layers exchanges gradients and another weights"):
        Genome(exact, (("Linear", gossip),)).plan()
    with pytest.raises(ValueError, match="has the settings bits, not rank"):
        Genome(Gene("exact", {"rank": 4})).plan()


def test_owners_stand_beside_other_exchanges_and_follow_links_and_optimizer():
    owner, bf16 = Gene("owner", {}), Gene("exact", {"bits": 16})
    mixed = Genome(bf16, (("Linear", owner),), cut="auto")
    assert [str(rule.exchange) for rule in mixed.plan().rules] == ["ShardedOptimizer", "AllReduce(codec=bf16)"]
    assert mixed in Space(WORKLOAD, FLAT, Quality())
    assert mixed not in Space(WORKLOAD, FLAT, Quality(optimizer="Muon"))
    muon = Space(WORKLOAD, FLAT, Quality(optimizer="Muon"))
    assert str(muon.baselines["zero-owner"].plan().rules[-1].exchange.placement) == str(Placement(cut="whole"))
    assert muon.baselines["zero-owner"] in muon
    rates = (2e7, 2e7, 1e7)
    uneven = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate) for k, rate in enumerate(rates)))
    space, rng = Space(WORKLOAD, uneven, Quality()), random.Random(0)
    by_bandwidth = replace(space.baselines["zero-owner"], bandwidths=(2.0, 2.0, 1.0))
    assert by_bandwidth in space
    assert from_json(Genome, to_json(by_bandwidth)) == by_bandwidth
    assert by_bandwidth.plan().rules[-1].exchange.placement.bandwidths == (2.0, 2.0, 1.0)
    assert any(space.mutate(by_bandwidth, rng) == space.baselines["zero-owner"] for _ in range(100))
    assert {genes.bandwidths for genes in space.enumerate()} == {(), (2.0, 2.0, 1.0)}
    assert by_bandwidth not in Space(WORKLOAD, FLAT, Quality())
    assert replace(Genome(bf16), cut="auto", bandwidths=(1.0,)) == Genome(bf16)
    old = from_json(Genome, json.dumps(json.loads(to_json(Genome(owner))) | {"bucket_bytes": 7}))
    assert old.plan().rules[-1].exchange.placement == Placement(cut="whole")  # as it was measured then


def test_owners_add_up_inside_hosts_where_these_have_several_ranks():
    hosts = tuple(Host(name=f"h{k}", num_ranks=4, send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(2))
    several = Topology(hosts=hosts)
    flat, by_hosts = (Genome(Gene("owner", {}), cut="auto", by_hosts=by) for by in (False, True))
    assert str(by_hosts.plan().rules[-1].exchange) == "BetweenHosts(inner=ShardedOptimizer)"
    assert by_hosts in Space(WORKLOAD, several, Quality())
    assert by_hosts not in Space(WORKLOAD, FLAT, Quality())
    times = [simulate(each.plan(), WORKLOAD, several).exposed_s for each in (by_hosts, flat)]
    assert times[0] < times[1] / 2


def test_sparse_gradients_go_as_the_network_wants():
    """On long links fewer rounds win, also where they are more bytes; without sparse rows there is no choice."""
    rows = TensorSpec(
        name="e", shape=(100_000, 32), dtype="float32", layer="Embedding", ready_s=0.0, sparse_rows=2000.0, distinct=0.3
    )
    words = Workload(name="words", tensors=(rows,), forward_s=0.01, backward_s=0.01)
    rng, genes = random.Random(0), Genome(Gene("exact", {"bits": 32}))
    assert {Space(WORKLOAD, FLAT, Quality()).sample(rng).sparse for _ in range(50)} == {"auto"}
    for delay_s, wanted in ((0.0, "owners"), (0.3, "gather")):
        hosts = tuple(
            Host(name=f"h{k}", send_bytes_per_s=1e8, receive_bytes_per_s=1e8, delay_s=delay_s) for k in range(3)
        )
        space = Space(words, Topology(hosts=hosts), Quality())
        drawn = {genes.sparse for genes in space.enumerate()}
        times = {way: simulate(replace(genes, sparse=way).plan(), words, Topology(hosts=hosts)).step_s for way in drawn}
        assert len(times) == 4
        assert times[wanted] == min(times.values())
        assert times["auto"] == times["owners"] < times["dense"]
        assert {space.mutate(genes, rng).sparse for _ in range(100)} == drawn
    assert from_json(Genome, to_json(replace(genes, sparse="dense"))).plan().sparse == "dense"
    assert replace(genes, sparse="dense").plan().hash != genes.plan().hash


def test_ratios_of_steps_bound_what_is_milder(table):
    table()
    quality = Quality(budget=2)
    assert quality.ratio_of(Gene("local", {"every": 8})) == 1.07
    assert quality.ratio_of(Gene("local", {"every": 2})) == 1.07  # milder than what was measured
    assert quality.ratio_of(Gene("local", {"every": 16})) is None  # stronger than anything measured
    own = Quality(budget=2, ratios={Gene("local", {"every": 16}): 1.5})
    assert own.ratio_of(Gene("local", {"every": 16})) == 1.5
    mixed = Genome(Gene("exact", {"bits": 16}), (("Linear", Gene("quantized", {"bits": 2})),))
    assert quality.ratio(mixed) == 1.36
    with pytest.raises(ValueError, match="fewer steps than exact"):
        Quality(budget=0.9)
    with pytest.raises(ValueError, match="budget of nan"):
        Quality(budget=math.nan)


def test_sizes_that_mean_the_same_plan_come_once():
    tensor = TensorSpec(name="w", shape=(1_000_000,), dtype="float32", layer="Linear", ready_s=0.0)
    small = Workload(name="small", tensors=(tensor,), forward_s=0.0, backward_s=0.0)
    space = Space(small, Topology(hosts=(Host(name="a"), Host(name="b"))), Quality())
    assert {genes.bucket_bytes for genes in space.enumerate()} == {2**19, 2**20, 2**21, 5 * 2**20}  # the last holds all
    rng = random.Random(0)
    assert {space.sample(rng).chunk_bytes for _ in range(200)} == {2**18, 2**20, 2**22}


def test_what_was_never_measured_with_an_optimizer_is_not_chosen(table):
    table()
    lossy, exact = Gene("quantized", {"bits": 8}), Gene("exact", {"bits": 16})
    weights = Gene("local", {"every": 8})
    other = Quality(budget=3, optimizer="AdamW")
    assert other.admits(exact)
    assert not other.admits(lossy)
    assert not other.admits(weights)
    assert "measured with SGD only, and this training uses AdamW" in other.sentence
    assert all(not Quality(budget=budget, optimizer=name).sentence for budget, name in ((1, "AdamW"), (3, "SGD")))
    assert Quality(budget=3, optimizer="AdamW", ratios={weights: 1.2}).admits(weights)  # by whom it is their own
    for free in (Quality(budget=3), Quality(budget=3, optimizer="AdamW", unmeasured=True)):
        assert free.admits(lossy)
        assert free.admits(weights)
        assert not free.sentence


def test_sums_go_by_schedules_only_where_pairs_of_hosts_differ():
    """On equal hosts nothing is offered, and nothing is drawn for it, so that samples stay as they were."""
    workload, quality = WORKLOAD, Quality(budget=1.5, unmeasured=True)
    even = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(4)))
    uneven = replace(even, links=(Link(source="h0", target="h1", bytes_per_s=1e5, latency_s=0.0),))
    rng = random.Random(0)
    assert not any(Space(workload, even, quality).sample(rng).by_schedule for _ in range(50))
    offered = Space(workload, uneven, quality)
    drawn = [offered.sample(rng) for _ in range(100)]
    assert any(genes.by_schedule for genes in drawn)
    for genes in drawn:
        assert genes.by_schedule == any(rule.exchange.needs_links for rule in genes.plan().rules)
    assert BASELINES["scheduled"] in offered
    assert BASELINES["scheduled"] not in Space(workload, even, quality)
    changed = {offered.mutate(BASELINES["ddp"], rng).by_schedule for _ in range(100)}
    assert changed == {False, True}


def test_what_a_search_found_is_sent_with_a_schedule_for_the_network():
    hosts = tuple(Host(name=f"h{k}") for k in range(3))
    links = tuple(
        Link(source=a.name, target=b.name, bytes_per_s=1e5 if a is hosts[0] and b is hosts[2] else 1e7, latency_s=1e-3)
        for a in hosts
        for b in hosts
        if a is not b
    )
    plan = with_schedules(BASELINES["scheduled"].plan(), WORKLOAD, Topology(hosts=hosts, links=links))
    assert all(isinstance(rule.exchange.schedule, Schedule) for rule in plan.rules)
    exact = BASELINES["ddp"].plan()
    assert with_schedules(exact, WORKLOAD, Topology(hosts=hosts, links=links)) is exact


def test_agreed_blocks_go_by_a_schedule_where_others_do():
    hosts = tuple(Host(name=f"h{k}", send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(3))
    links = tuple(
        Link(source=a.name, target=b.name, bytes_per_s=1e4 if a is hosts[0] and b is hosts[2] else 1e7, latency_s=1e-3)
        for a in hosts
        for b in hosts
        if a is not b
    )
    topology = Topology(hosts=hosts, links=links)
    offered = Space(WORKLOAD, topology, Quality(budget=10, unmeasured=True))
    drawn = [each for each in offered.enumerate() if each.base.family == "tasc" and each.by_schedule]
    assert {each.base.settings["agreement"] for each in drawn} == {"leader", "global"}
    plan = with_schedules(drawn[0].plan(), WORKLOAD, topology)
    scheduled = [rule.exchange for rule in plan.rules if isinstance(rule.exchange, BlockSparse)]
    assert [type(node.schedule) for node in scheduled] == [Schedule]
    ring, by_schedule = (Genome(drawn[0].base, by_schedule=by).plan() for by in (False, True))
    assert simulate(by_schedule, WORKLOAD, topology).step_s < simulate(ring, WORKLOAD, topology).step_s


def test_a_schedule_is_chosen_for_the_machines_and_the_pause_before_its_sums(monkeypatch):
    """Windows that a pause has closed make each round dear, as the simulator says of the same plan."""
    asked = []

    def note(num_bytes, topology, overheads, *, is_coded):
        asked.append((overheads.pause_s, overheads.nccl))

    monkeypatch.setattr(schedules, "fastest_schedule", note)
    hosts = tuple(Host(name=f"h{k}", delay_s=0.1, machine="t4") for k in range(3))
    work = replace(WORKLOAD, forward_s=2.0, backward_s=1.0, step_s=0.5)
    for node in ("allreduce(schedule=auto)", "local_sgd(period=4, averaging=allreduce(schedule=auto))"):
        with_schedules(plan_of(parse(node)), work, Topology(hosts=hosts))
    first_s = min(tensor.ready_s for tensor in work.tensors)
    assert asked == [(2.5 + first_s, "pcie"), (4 * 3.5, "pcie")]


def test_a_schedule_is_chosen_for_the_costs_that_were_measured(monkeypatch):
    asked = []
    monkeypatch.setattr(schedules, "fastest_schedule", lambda num, places, costs, **_: asked.append(costs.message_s))
    given = plan_of(parse("allreduce(schedule=auto)"))
    for measured in (Overheads(message_s=0.5), None):
        with_schedules(given, WORKLOAD, FLAT, measured)
    assert asked == [0.5, Overheads().message_s]


@pytest.fixture(params=["float32", "bfloat16"])
def work(request):
    """The example in a type of its own, with one bucket or weights in one."""
    return replace(WORKLOAD, tensors=tuple(replace(tensor, dtype=request.param) for tensor in WORKLOAD.tensors))


@pytest.mark.parametrize(
    "node",
    [
        "allreduce(schedule=auto)",
        "bf16(schedule=auto)",
        "powersgd(rank=2, schedule=auto)",
        "int4(schedule=auto)",
        "every(2, allreduce(schedule=auto))",
        "local_sgd(period=4, averaging=allreduce(schedule=auto))",
    ],
)
def test_a_schedule_is_chosen_for_the_bytes_that_are_added_up(node, work, monkeypatch):
    """The planner asks for the longest of the sums for which the simulator asks."""
    asked, counted = [], []
    monkeypatch.setattr(schedules, "fastest_schedule", lambda num_bytes, *_, **__: asked.append(num_bytes))
    for module in (scheduled, scheduled_codes):
        monkeypatch.setattr(module, "fastest_schedule", lambda num_bytes, *_, **__: counted.append(num_bytes))
    plan = replace(plan_of(parse(node)), bucket_bytes=1 << 30)
    simulate(plan, work, FLAT)
    with_schedules(plan, work, FLAT)
    assert [size_at(each) for each in asked] == [size_at(max(counted))]


def test_a_schedule_is_chosen_for_a_bucket(work, monkeypatch):
    asked = []
    monkeypatch.setattr(schedules, "fastest_schedule", lambda num_bytes, *_, **__: asked.append(num_bytes))
    with_schedules(replace(plan_of(parse("allreduce(schedule=auto)")), bucket_bytes=1 << 20), work, FLAT)
    assert asked == [1 << 20]


def test_a_bucket_holds_whole_tensors(work, monkeypatch):
    asked = []
    monkeypatch.setattr(schedules, "fastest_schedule", lambda num_bytes, *_, **__: asked.append(num_bytes))
    with_schedules(replace(plan_of(parse("allreduce(schedule=auto)")), bucket_bytes=1), work, FLAT)
    assert asked == [max(tensor.numel * itemsize(tensor) for tensor in work.tensors)]


@pytest.mark.parametrize("node", ["sharded_optimizer", "acco"])
def test_ways_to_owners_and_back_are_chosen_for_their_bytes(node, work, monkeypatch):
    """Gradients and new weights travel in the model's type; where owners step beside, gradients in float32, as one."""
    asked = []

    def note(there, back, *_, num_sums):
        asked.append((sum(there), sum(back), num_sums))

    monkeypatch.setattr(schedules, "fastest_owner_schedule", note)
    plan = replace(plan_of(parse(f"{node}(schedule=auto)")), bucket_bytes=1 << 20)
    with_schedules(plan, work, FLAT)
    model_bytes = sum(tensor.numel * itemsize(tensor) for tensor in work.tensors)
    there, num_sums = (4 * work.numel, 1) if node == "acco" else (1 << 20, math.ceil(model_bytes / (1 << 20)))
    assert asked == [(pytest.approx(there, abs=4), pytest.approx(model_bytes, abs=4), num_sums)]
