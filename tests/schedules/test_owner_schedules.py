"""Owners by schedules: sums and what comes back against the direct way, the proof, the search, and what is refused."""

import copy
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import pliant
from exchanges import owned_parts
from pliant.algorithms.executors.owner_ways import owner_ways
from pliant.algorithms.plans import plan_of
from pliant.codecs import Qsgd, codec_from
from pliant.collectives import ReduceToOwners, SpreadFromOwners
from pliant.comm import hierarchical_comm, run_world
from pliant.planner.genome import Gene, Genome
from pliant.planner.schedules import with_schedules
from pliant.schedules import (
    ScheduleError,
    SolverOptions,
    background,
    choice as choice_module,
    predict_cost,
    verify,
)
from pliant.schedules.dense import dense_merged
from pliant.schedules.owned import direct_s, fastest_half, fastest_owner_schedule, owner_candidates, owner_task
from pliant.schedules.rooted import place_half, roots_of
from pliant.schedules.trees import pack_trees
from pliant.simulator import simulate
from pliant.spec import CodecSpec, Schedule, TensorSpec, Workload, from_json, save, to_json
from pliant.spec.worlds import world
from schedules.cases import SolvedAtOnce, hosts, trained
from schedules.test_dense import mesh

MIB = 1 << 20
HOSTS = {"apart": [[0], [1], [2]], "equal": [[0, 1], [2, 3]], "unequal": [[0], [1, 2, 3], [4, 5]], "two": [[1, 0], [2]]}


def of_owners(num_places, seed=1):
    """Return every schedule for owners of equal parts over pairs that differ, by its name."""
    equal = [MIB] * num_places
    return {each.name: each.schedule for each in owner_candidates(equal, equal, mesh(num_places, seed))}


def start():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()


@pytest.mark.parametrize("shape", HOSTS)
def test_sums_and_what_comes_back_are_those_of_the_direct_way(shape):
    """Of whole numbers, so that no order of additions counts; by every schedule, on ranks and on hosts of ranks."""
    groups, numel = HOSTS[shape], 701
    size = sum(map(len, groups))
    parts = owned_parts(size, numel)
    held = [sum(b - a for owner, (a, b) in parts if owner == rank) for rank in range(size)]
    schedules = {places: of_owners(places).values() for places in (size, len(groups))}

    def body(place):
        whole = torch.randint(-1000, 1000, (numel,), generator=torch.Generator().manual_seed(place.rank)).double()
        wanted = whole.clone()
        ReduceToOwners(parts, place.comm, like=wanted, codec=None)(wanted, 1)
        for comm in (place.comm, hierarchical_comm(place.comm, groups)):
            places = size if comm is place.comm else len(groups)
            for schedule in schedules[places]:
                ways = owner_ways(pliant.sharded_optimizer(schedule=schedule), comm)
                x = whole.clone()
                total = ReduceToOwners(parts, comm, like=x, codec=None, ways=ways)
                for _ in range(2):  # nothing of the call before is left in the buffers
                    x.copy_(whole)
                    total(x, 1)
                    assert torch.equal(x, wanted), (schedule.name, places)
                back = SpreadFromOwners(held, comm, dtype=torch.float64, device=torch.device("cpu"), ways=ways)
                for step in range(2):
                    back.part(place.rank).fill_(place.rank + 100 * step)
                    back()
                    assert all((back.part(rank) == rank + 100 * step).all() for rank in range(size)), schedule.name

    run_world(size, body)


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.extended)])
def test_training_by_a_schedule_is_training(size):
    """In float64, to rounding, and to the bit where sums are in the same order; ranks are equal to the bit."""
    model = start()
    direct, *_ = run_world(size, lambda context: trained(context, model, "sharded_optimizer"))
    for name, schedule in of_owners(size).items():
        by = pliant.sharded_optimizer(schedule=schedule)
        first, *others = run_world(size, lambda context, by=by: trained(context, model, by))
        assert all(torch.equal(first, other) for other in others)
        assert torch.allclose(first, direct, rtol=0, atol=1e-14)
        assert torch.equal(first, direct) or name != "direct"


@pytest.mark.extended
def test_training_in_codes_by_a_schedule_is_training():
    model = start().float()
    exact, *_ = run_world(4, lambda context: trained(context, model, "allreduce"))
    for schedule in of_owners(4).values():
        by = pliant.sharded_optimizer(Qsgd(bits=8), schedule=schedule)
        first, *others = run_world(4, lambda context, by=by: trained(context, model, by))
        assert all(torch.equal(first, other) for other in others)
        assert torch.allclose(first, exact, atol=0.02)


def test_training_between_hosts_by_a_schedule_is_training():
    """Three hosts of six ranks, whose places are a schedule's ranks."""
    model, groups = start(), HOSTS["unequal"]
    direct, scheduled = (
        run_world(6, lambda context, node=node: trained(context, model, node, hosts=groups))
        for node in (
            pliant.between_hosts(pliant.sharded_optimizer(schedule=ways))
            for ways in ("direct", of_owners(3)["trees 2+2"])
        )
    )
    assert all(torch.equal(other, scheduled[0]) for other in scheduled)
    assert torch.allclose(direct[0], scheduled[0], rtol=0, atol=1e-14)


def test_a_codec_without_loss_gives_exact_sums():
    """Whole numbers and sums that float16 holds, in whatever order they are added up and coded."""
    numel, size = 501, 5
    parts, schedules = owned_parts(size, numel), of_owners(size).values()

    def body(place):
        whole = torch.randint(-9, 10, (numel,), generator=torch.Generator().manual_seed(place.rank)).float()
        wanted = whole.clone()
        ReduceToOwners(parts, place.comm, like=wanted, codec=None)(wanted, 1)
        for schedule in schedules:
            ways, x = owner_ways(pliant.sharded_optimizer(schedule=schedule), place.comm), whole.clone()
            codec = codec_from(CodecSpec(name="fp16"))
            ReduceToOwners(parts, place.comm, like=x, codec=codec, ways=ways)(x, 1)
            assert torch.equal(x, wanted), schedule.name

    run_world(size, body)


def test_sums_in_codes_are_right_on_average():
    """With relays, which code again what was coded: the error of a mean of 144 sums is that of one, over 12."""
    numel, size, calls = 64, 4, 144
    parts, schedule = [(0, (0, numel))], of_owners(size)["trees 2+2"]

    def body(place):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(place.rank))
        exact, found = x.clone(), torch.zeros(calls, numel)
        ReduceToOwners(parts, place.comm, like=exact, codec=None)(exact, 1)
        ways = owner_ways(pliant.sharded_optimizer(schedule=schedule), place.comm)
        total = ReduceToOwners(parts, place.comm, like=x, codec=Qsgd(bits=4), ways=ways)
        for call in range(calls):
            found[call].copy_(x)
            total(found[call], 1000 * call)
        return exact, found

    (exact, found), *_ = run_world(size, body)
    spread = found.std(0)
    assert (spread > 0).any()
    assert ((found.mean(0) - exact).abs() <= 5 * spread / calls**0.5 + 1e-6).all()


@pytest.mark.parametrize(("num_ranks", "seed"), [(2, 1), (3, 2), (5, 3)])
def test_trees_have_the_roots_that_are_asked_for(num_ranks, seed):
    shares = [(k + 1) % num_ranks for k in range(num_ranks)]  # the last rank owns nothing
    shares = [share / sum(shares) for share in shares]
    found = pack_trees(mesh(num_ranks, seed), owned=shares)
    verify(found, dense_merged(found, MIB).collective)
    held = [0.0] * num_ranks
    for root, share in zip(roots_of(found), found.shares, strict=True):
        held[root] += share
    assert held == pytest.approx(shares, abs=0.01)


def test_an_owner_of_next_to_nothing_has_a_root():
    found = pack_trees(mesh(3, 1), owned=[0.4999, 0.5, 0.0001])
    assert set(roots_of(found)) == {0, 1, 2}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_halves_are_proven_for_parts_of_any_sizes(data):
    """Every part is cut whole, on hosts of any sizes; and a half without one of its moves is refused."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    groups = tuple(tuple(range(a, b)) for a, b in pairwise(ends))
    numels = tuple(data.draw(st.lists(st.integers(0, 40), min_size=ends[-1], max_size=ends[-1])))
    unit = data.draw(st.sampled_from([1, 8]))
    schedule = data.draw(st.sampled_from(list(of_owners(len(sizes)).values())))
    for kind in ("reduce", "copy"):
        half = place_half(schedule, kind, numels, groups, unit)
        verified = verify(half.schedule, half.collective)
        assert sum(verified.sent_bytes) == (len(sizes) - 1) * sum(numels)
        starts = half.starts([100 * rank for rank in range(ends[-1])])
        for rank, numel in enumerate(numels):
            mine = [(starts[b], n) for b, n in enumerate(half.numels) if half.owners[b] == rank]
            assert sum(n for _, n in mine) == numel
            assert all((start - 100 * rank) % unit == 0 for start, n in mine if n)
        moves = [(at, move) for at, each in enumerate(half.schedule.rounds) for move in each]
        if moves:
            at, move = random.Random(len(moves)).choice(moves)
            rounds = list(half.schedule.rounds)
            rounds[at] = tuple(each for each in rounds[at] if each != move)
            with pytest.raises(ScheduleError):
                verify(replace(half.schedule, rounds=tuple(rounds)), half.collective)


@pytest.mark.parametrize(("name", "gain"), [("two-racks", 1.8), ("home-uplinks", 1.4), ("islands", 1.0)])
def test_on_uneven_worlds_a_schedule_is_predicted_to_be_faster(name, gain):
    """Racks with thin uplinks, and homes with thin ones: relays that add up on the near side, or trees."""
    topology = world(name)
    tensors = [
        TensorSpec(name=f"w{k}", shape=(1000, 2000), dtype="float32", layer="Linear", ready_s=0.01 * k)
        for k in range(12)
    ]
    workload = Workload(name="test", tensors=tuple(tensors), forward_s=0.1, backward_s=0.2, step_s=0.01)
    direct = simulate(plan_of(pliant.sharded_optimizer()), workload, topology)
    auto = plan_of(pliant.sharded_optimizer(schedule="auto"))
    found = simulate(auto, workload, topology)
    assert direct.step_s > gain * found.step_s
    planned = with_schedules(auto, workload, topology)
    assert isinstance(planned.rules[0].exchange.schedule, Schedule)
    assert simulate(planned, workload, topology).step_s == pytest.approx(found.step_s, rel=0.1)


@pytest.mark.parametrize("kind", ["reduce", "copy"])
@pytest.mark.parametrize("owned", [(MIB,) * 4, (5 * MIB, 0, MIB, 2 * MIB), (70, 9000, 400, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_the_half_that_is_chosen_is_near_the_best(seed, owned, kind):
    """Sizes are rounded, of all ranks alike; the best is that of exact sizes, where the other half has nothing."""
    topology, none = mesh(4, seed), (0,) * 4
    both = (owned, none) if kind == "reduce" else (none, owned)
    straight_s, found = direct_s(owned, kind, topology), fastest_half(owned, kind, topology)
    best_s = owner_candidates(*both, topology)[0].cost.total_s
    half = None if found is None else place_half(found, kind, owned, tuple((rank,) for rank in range(4)))
    took_s = straight_s if half is None else predict_cost(half.schedule, half.collective, topology).total_s
    assert took_s <= 1.05 * min(straight_s, best_s)


def test_where_nothing_is_gained_it_stays_direct():
    equal = (MIB,) * 4
    assert fastest_owner_schedule(equal, equal, hosts([1] * 4)) is None
    assert fastest_owner_schedule(equal, (0,) * 4, hosts([1] * 4)) is None
    assert fastest_owner_schedule((0,) * 4, (0,) * 4, mesh(4, 1)) is None
    assert fastest_half(equal, "copy", hosts([1] * 4)) is fastest_half((0,) * 4, "copy", mesh(4, 1)) is None
    workload = Workload(
        name="test",
        tensors=(TensorSpec(name="w", shape=(1000, 1000), dtype="float32", layer="Linear", ready_s=0.01),),
        forward_s=0.1,
        backward_s=0.1,
        step_s=0.1,
    )
    planned = with_schedules(plan_of(pliant.sharded_optimizer(schedule="auto")), workload, hosts([1] * 4))
    assert planned.rules[0].exchange == pliant.sharded_optimizer()


def test_halves_are_searched_for_by_themselves():
    """What is asked for one half alone is as good for it as what is asked for both."""
    topology, equal, none = mesh(4, 3), [MIB] * 4, [0] * 4
    both = owner_candidates(equal, equal, topology)[0].cost.total_s
    halves = [owner_candidates(*each, topology)[0].cost.total_s for each in ((equal, none), (none, equal))]
    assert sum(halves) <= both * (1 + 1e-9)
    straight = [direct_s(equal, kind, topology) for kind in ("reduce", "copy")]
    assert all(half < before for half, before in zip(halves, straight, strict=True))


def test_a_plan_between_hosts_has_a_schedule_of_hosts():
    topology = replace(mesh(3, 1), hosts=tuple(replace(host, num_ranks=2) for host in mesh(3, 1).hosts))
    workload = Workload(
        name="test",
        tensors=(TensorSpec(name="w", shape=(2000, 1000), dtype="float32", layer="Linear", ready_s=0.01),),
        forward_s=0.1,
        backward_s=0.1,
        step_s=0.1,
    )
    for inner in (pliant.sharded_optimizer(schedule="auto"), pliant.allreduce(schedule="auto")):
        planned = with_schedules(plan_of(pliant.between_hosts(inner)), workload, topology)
        schedule = planned.rules[0].exchange.inner.schedule
        assert isinstance(schedule, Schedule)
        assert schedule.num_ranks == 3
        direct = pliant.between_hosts(replace(inner, schedule=type(inner)().schedule))
        assert simulate(planned, workload, topology).step_s < simulate(plan_of(direct), workload, topology).step_s


def test_a_genome_of_owners_may_go_by_schedules():
    genes = Genome(Gene("owner", {}), by_schedule=True)
    assert genes.by_schedule
    assert genes.plan().rules[0].exchange.schedule == "auto"
    assert "sums by schedule" in genes.summary


@pytest.mark.parametrize("codec", [None, CodecSpec(name="fp16")])
def test_what_is_found_beside_training_is_tried_and_stays_only_if_faster(codec, monkeypatch):
    """Whatever is on trial, sums are right, and all ranks change together; each half is a kind of its own."""
    monkeypatch.setattr(background, "SolverProcess", SolvedAtOnce)
    soon = SolverOptions(after=5, limit_s=5.0, trials=5)
    made = choice_module.ScheduleChoice
    monkeypatch.setattr(choice_module, "ScheduleChoice", lambda *a, **settings: made(*a, **settings, solver=soon))
    numel, size = 300_000, 3
    parts = owned_parts(size, numel)
    held = [sum(b - a for owner, (a, b) in parts if owner == rank) for rank in range(size)]

    def body(place):
        ways = owner_ways(pliant.sharded_optimizer(schedule=mesh(size, 1)), place.comm)
        whole = torch.randint(-9, 10, (numel,), generator=torch.Generator().manual_seed(place.rank)).float()
        wanted, x, seen = whole.clone(), whole.clone(), set()
        ReduceToOwners(parts, place.comm, like=wanted, codec=None)(wanted, 1)
        total = ReduceToOwners(parts, place.comm, like=x, codec=None if codec is None else codec_from(codec), ways=ways)
        back = SpreadFromOwners(held, place.comm, dtype=torch.float32, device=torch.device("cpu"), ways=ways)
        for step in range(200):
            x.copy_(whole)
            total(x, step)
            assert torch.equal(x, wanted)
            back.part(place.rank).fill_(place.rank + step)
            back()
            assert all((back.part(rank) == rank + step).all() for rank in range(size))
            seen.add(ways._choice.num_scheduled)
            if not ways._choice.is_open:
                break
        return seen, ways._choice.is_open

    first, *others = run_world(size, body)
    assert all(other == first for other in others)
    seen, is_open = first
    assert not is_open
    assert max(seen) >= 1


def test_auto_measures_the_links_and_trains():
    model = start()
    direct, *_ = run_world(3, lambda context: trained(context, model, "sharded_optimizer"))
    for text in ("sharded_optimizer(schedule=auto)", "sharded_optimizer(cut='whole', schedule='auto')"):
        first, *others = run_world(3, lambda context, text=text: trained(context, model, text))
        assert all(torch.equal(first, other) for other in others)
        assert torch.allclose(first, direct, rtol=0, atol=1e-14)


def test_a_switch_to_a_schedule_and_back_changes_nothing(tmp_path):
    path = tmp_path / "schedule.json"
    save(of_owners(2)["trees 2+2"], path)
    first = start()  # here, since threads share torch's generator

    def body(place):
        found = []
        for plans in (["sharded_optimizer"], [f"sharded_optimizer(schedule={str(path)!r})", "sharded_optimizer"]):
            model = copy.deepcopy(first)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            with pliant.relax(model, optimizer, plans[0], group=place.process_group) as run:
                for step in range(4):
                    if step == 2 and len(plans) > 1:
                        run.switch(plans[1])
                    run.model(torch.full((5, 6), 0.1 * place.rank + step, dtype=torch.float64)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                told = run.explain()
            found.append((torch.cat([p.detach().flatten() for p in model.parameters()]), told))
        return found

    for (plain, _), (switched, _) in run_world(2, body):
        assert torch.equal(plain, switched)


def test_a_run_says_how_parts_travel():
    def told(schedule):
        def body(place):
            model = start()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            node = pliant.sharded_optimizer(schedule=schedule)
            with pliant.relax(model, optimizer, node, group=place.process_group) as run:
                return run.explain()

        return run_world(2, body)[0]

    assert "Gradients go to them, and new weights back, by the schedule 'trees 2+2'." in told(of_owners(2)["trees 2+2"])
    assert "straight, until a schedule for the links is found and measured to be faster." in told(mesh(2, 1))
    assert "straight" not in told("direct")
    assert "by the schedule" not in told("direct")


@pytest.mark.parametrize("schedule", ["auto", mesh(3, 1), pack_trees(mesh(3, 1), owned=[0.5, 0.25, 0.25])])
def test_plans_keep_their_schedules_in_json_and_text(schedule):
    node = pliant.sharded_optimizer(schedule=schedule)
    assert pliant.parse(str(node)) == node
    plan = plan_of(node)
    assert from_json(type(plan), to_json(plan)) == plan
    assert node.needs_links == (schedule == "auto")
    assert "schedule" not in str(pliant.sharded_optimizer())
    assert "schedule" not in to_json(plan_of(pliant.sharded_optimizer()))


def refusal(schedule, match, size=2, **settings):
    """Assert that ranks that begin with this schedule are told, each in one sentence."""

    def body(place):
        model = start()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        node = pliant.sharded_optimizer(schedule=schedule, **settings)
        with pytest.raises(ValueError, match=match):
            step(model, optimizer, node, place)

    def step(model, optimizer, node, place):
        with pliant.relax(model, optimizer, node, group=place.process_group) as run:
            run.model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
            optimizer.step()

    run_world(size, body)


def test_schedules_that_do_not_fit_are_refused():
    refusal(of_owners(3)["ring"], "is for 3 ranks, but 2 add up; make one for this network")
    refusal(mesh(3, 1), "the topology has 3 ranks on 3 hosts, but 2 ranks add up")
    some = pack_trees(mesh(2, 1), owned=[1.0, 0.0])
    refusal(some, "forms no sums where rank 1 is, which owns a part; make one for these owners with `pliant schedule")
    fits, model = pliant.sharded_optimizer(schedule=some, owners=(0,)), start()
    first, second = run_world(2, lambda context: trained(context, model, fits))
    assert torch.equal(first, second)
    ring = of_owners(3)["ring"]
    refusal(replace(ring, rounds=ring.rounds[1:]), "but|lacks the contributions", size=3)
    refusal(replace(ring, rounds=ring.rounds[:-1]), "at the end rank .* needs block", size=3)


def test_mistakes_are_one_sentence():
    with pytest.raises(ValueError, match="'ring' is neither 'direct' nor 'auto', nor a file that can be read"):
        pliant.sharded_optimizer(schedule="ring")
    with pytest.raises(ValueError, match="schedule must be one of 'direct', 'auto', got 'ring'"):
        replace(pliant.sharded_optimizer(), schedule="ring")
    with pytest.raises(TypeError, match="schedule"):
        pliant.bounded_staleness(schedule="auto")
    with pytest.raises(ValueError, match="is for 3 ranks, but 4 are simulated"):
        simulate(
            plan_of(pliant.sharded_optimizer(schedule=of_owners(3)["ring"])),
            Workload(
                name="test",
                tensors=(TensorSpec(name="w", shape=(8, 8), dtype="float32", layer="Linear", ready_s=0.01),),
                forward_s=0.1,
                backward_s=0.1,
                step_s=0.1,
            ),
            hosts([1] * 4),
        )

    def alone(place):
        with pytest.raises(ValueError, match="nobody has measured here"):
            owner_ways(pliant.sharded_optimizer(schedule="auto"), place.comm)

    run_world(1, alone)


def test_the_task_of_a_half_names_owners_alone():
    up, down = (owner_task([5, 0, 7], kind) for kind in ("reduce", "copy"))
    assert up.block_bytes == down.block_bytes == (5, 7)
    assert up.needers == down.holders == ((0,), (2,))
    assert up.holders == down.needers == ((0, 1, 2),) * 2
