"""HALoS: servers of regions and of all, against the authors' equations with a rank at a time; who waits for whom."""

import random
import threading
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import pliant
from models import Inner, new_ddp, train, weights
from pliant.algorithms import executor_for
from pliant.algorithms.base import State
from pliant.algorithms.plans import plan_of
from pliant.engine.server_exchange import ServerExchange
from pliant.simulator import simulate
from pliant.spec import Host, Outer, RegionServers, TensorSpec, Topology, Workload
from waiting import dawdle, until

NUMEL = 4
NODE = RegionServers(
    period=2,
    scaled=False,
    region_ranks=2,
    region=Outer(lr=0.3, momentum=0.8, every=3),
    arrivals=3,
    world=Outer(lr=0.4, momentum=0.5, every=2),
    pull=0.25,
)
NEUTRAL = RegionServers(period=2, region=Outer())


def varied(**changed):
    return replace(NODE, **changed)


def gradient(rank, step):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * rank + step))


def begun(place, what, **settings):
    model = Inner(NUMEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"timeout_s": 60, **settings}
    return model, optimizer, pliant.relax(model, optimizer, what, group=place.process_group, **settings)


def step(place, optimizer, run, number=None):
    optimizer.zero_grad()
    run.model(gradient(place.rank, run.steps if number is None else number)).backward()
    optimizer.step()


def exchange_of(run):
    [exchange] = run._executor.of(ServerExchange)
    return exchange


def have_settled(exchanges):
    """Whether no exchange is under way on any rank, and none is due between servers."""
    partners = [partner for each in exchanges for partner in each._partners.values()]
    return all(partner.is_idle for partner in partners) and not any(r.is_due for each in exchanges for r in each._rules)


class Script:
    """Lets one rank at a time make a step, with no exchange under way."""

    def __init__(self, size):
        self.turns, self._exchanges = threading.Barrier(size), {}

    def play(self, place, optimizer, run, script, made=0):
        """Return the posted weights behind each step; `made` are the steps of this rank in earlier scripts."""
        self._exchanges[place.rank] = exchange = exchange_of(run)
        posted = []
        self.turns.wait(60)
        for rank in script:
            if place.rank == rank:
                step(place, optimizer, run, made)
                made += 1
            self.turns.wait(60)
            until(lambda: have_settled(self._exchanges.values()))
            posted.append(exchange.buckets[0].posted.flat.clone())
            self.turns.wait(60)
        return torch.stack(posted)


def scripted(what, script, size, then=lambda place, run: None):
    """Return of each rank its posted weights behind each step of all ranks, and what `then` returns."""
    play = Script(size)

    def body(place):
        _, optimizer, run = begun(place, what)
        with run:
            posted, found = play.play(place, optimizer, run, script), then(place, run)
            play.turns.wait(60)  # who ends tells others
        return posted, found

    return pliant.run_world(size, body, timeout_s=60)


class Authors:
    """Delayed Nesterov as in the authors' code: changes over the size of a buffer, at so many times the rate."""

    def __init__(self, outer):
        self.size, self.rate, self.beta = outer.every, outer.lr * outer.every, outer.momentum
        self.p, self.m, self.delta = (torch.zeros(NUMEL).double() for _ in range(3))
        self.t = 0

    def take(self, g):
        self.delta, self.t = self.delta + g, self.t + 1
        way = g / self.size
        if self.t % self.size == 0:
            self.m = self.beta * self.m + self.delta / self.size
            self.delta = torch.zeros(NUMEL).double()
            way = way + self.beta * self.m
        self.p = self.p - self.rate * way
        return self.p.clone()


class Oracle:
    """The box in float64, where every message arrives at once."""

    def __init__(self, node, size):
        self.node, self.several = node, size > node.region_ranks
        self.regions = {first: Authors(node.region) for first in range(0, size, node.region_ranks)}
        self.merged = dict.fromkeys(self.regions, torch.zeros(NUMEL).double())
        self.heard = dict.fromkeys(self.regions, 0)
        self.world = Authors(node.world)
        self.x, self.start = ([torch.zeros(NUMEL).double() for _ in range(size)] for _ in range(2))

    def is_due(self, first):
        return self.several and self.regions[first].t - self.heard[first] >= self.node.arrivals

    def merge(self, first, everywhere):
        served = self.regions[first]
        served.p = (1 - self.node.pull) * served.p + self.node.pull * everywhere
        self.merged[first], self.heard[first] = served.p, served.t

    def exchange(self, rank):
        first = rank - rank % self.node.region_ranks
        answer = self.regions[first].take(self.start[rank] - self.x[rank])
        if self.is_due(first):
            self.merge(first, self.world.take(self.merged[first] - self.regions[first].p))
            answer = self.regions[0].p if first == 0 else answer  # rank 0 asks itself before it answers
        self.x[rank] = self.start[rank] = answer

    def play(self, script):
        made = [0] * len(self.x)
        for rank in script:
            self.x[rank] = self.x[rank] - gradient(rank, made[rank]).double()
            made[rank] += 1
            if made[rank] % self.node.period == 0:
                self.exchange(rank)
            yield torch.stack(self.x)


def drawn(size, length, seed=0):
    """Return who makes a step when: each rank first, so that all servers answer."""
    chance = random.Random(seed)
    return [*range(size), *(chance.randrange(size) for _ in range(length))]


@pytest.mark.parametrize("size", [1, 2, 4, 5, *(pytest.param(n, marks=pytest.mark.extended) for n in (3, 7))])
def test_servers_of_both_tiers_equal_the_authors_equations(size):
    script = drawn(size, 16 * size, size)
    found = scripted(NODE, script, size)
    wanted = torch.stack(list(Oracle(NODE, size).play(script)), 1)  # (size, steps, NUMEL)
    for rank, (seen, _) in enumerate(found):
        torch.testing.assert_close(seen.double(), wanted[rank], rtol=0, atol=1e-4)
    assert (wanted[:, -1] - wanted[0, -1]).abs().max() > 0.1 or size == 1


def test_a_region_hears_of_another_only_after_its_own_changes_and_to_a_part():
    """Rank 3 makes no step for long, and what rank 0's region does comes to it by way of all regions alone."""
    script = [*range(4), *[0, 1] * 8, 3, 3, 2, 2, 2, 3, 3]
    found = scripted(NODE, script, 4)
    behind = [seen[-8] for seen, _ in found]
    assert (behind[0] - behind[3]).abs().max() > 0.1
    torch.testing.assert_close(behind[3], -gradient(3, 0), rtol=0, atol=0)
    without = scripted(varied(pull=1e-9), script, 4)
    assert torch.equal(found[3][0][:-2], without[3][0][:-2])
    assert (found[3][0][-1] - without[3][0][-1]).abs().max() > 0.01


def rule_of(rank, size, node=NODE):
    """Return the rule of a rank and its slots, without any run."""
    executor, where = executor_for(node), SimpleNamespace(rank=rank, size=size)
    state = State(flat={slot: torch.zeros(NUMEL) for slot in executor.slots((NUMEL,), where)})
    return executor.pair_rule(NUMEL, state), state.flat


def told(asking, answering, of, x, *, meanwhile=lambda: None):
    """Carry out an exchange of two rules, of rank `of` at x; return its correction."""
    message = torch.empty(asking.num_bytes, dtype=torch.uint8)
    asking.ask(0, x, message, 0)
    meanwhile()
    assert answering.answer(of, torch.zeros(NUMEL), message, 0) is None
    meanwhile()
    return asking.take(0, message)


def test_what_comes_while_a_region_waits_stays_in_its_point_and_in_no_later_change():
    """As in the authors' code: the region's point when it hears of all is what its next change begins from."""
    g, node = torch.arange(1.0, NUMEL + 1), varied(region=Outer(lr=0.3), world=Outer())
    (here, at_here), (everywhere, at_all), (worker, _) = (rule_of(rank, 4, node) for rank in (2, 0, 3))
    for _ in range(3):
        assert not here.is_due
        told(worker, here, 3, worker._anchor - g)
    assert here.is_due
    more = iter((g, 2 * g))
    assert told(here, everywhere, 2, g, meanwhile=lambda: told(worker, here, 3, worker._anchor - next(more))) is None
    all_regions, point = -0.3 * 3 * g, -0.3 * 6 * g  # what came meanwhile is in the second alone
    torch.testing.assert_close(at_all["world/point"], all_regions)
    torch.testing.assert_close(at_here["region/point"], 0.75 * point + 0.25 * all_regions)
    assert torch.equal(at_here["merged"], at_here["region/point"])
    assert not here.is_due
    assert list(here.counts) == [5, 5, 0]
    assert list(everywhere.counts) == [0, 0, 1]


def test_progress_made_while_a_change_is_under_way_is_kept_and_counts_once():
    rule, _ = rule_of(1, 2)
    server, at = rule_of(0, 2, RegionServers(region=Outer()))
    x = torch.zeros(NUMEL)
    for k in range(1, 5):
        sent = x - k
        x = sent - 10 * k + told(rule, server, 1, sent)  # 10 k are done meanwhile
        torch.testing.assert_close(at["region/point"], x + 10 * k)
    torch.testing.assert_close(x, torch.full((NUMEL,), -110.0))


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_a_rank_that_computes_for_long_holds_up_nobody(held):
    """It makes no step until others have had ten exchanges more, some of which its own threads answer."""
    what, done, counts = pliant.halos(2, region_ranks=2, arrivals=2), threading.Event(), {}
    sending = [rank for rank in (1, 3) if rank != held]

    def body(place):
        _, optimizer, run = begun(place, what, timeout_s=200)
        with run:
            for _ in range(3):
                step(place, optimizer, run)
            before = run.stats()["exchanges_in_pairs"]
            if place.rank == held:
                until(lambda: all(counts.get(rank, 0) > 10 for rank in sending), lambda: counts)
                done.set()
            while not done.is_set():
                step(place, optimizer, run)
                dawdle(0.001)
                counts[place.rank] = run.stats()["exchanges_in_pairs"] - before
            return run.steps

    assert pliant.run_world(4, body, timeout_s=250)[held] == 3


@pytest.mark.parametrize(("scaled", "num"), [(True, 7), (False, 4)])
def test_a_rank_at_a_third_of_the_speed_has_a_shorter_period_by_the_steps_that_it_hears_of(scaled, num):
    """It sends after its steps 4, 6, 8, ..., 16, since 4 times 4/10, 6/16, 8/22, ... is rounded up to 2."""
    script = [0, 1] + [0, 0, 0, 1] * 15
    found = scripted(varied(period=4, scaled=scaled), script, 2, lambda place, run: run.stats()["exchanges_in_pairs"])
    assert found[1][1] == num


def test_a_rank_is_as_far_behind_as_the_fastest_that_it_knows_of_is_ahead():
    """Rank 1 is the fastest, and hears from its server of an earlier step of its own."""
    script = [0, *[1] * 10]
    found = scripted(varied(), script, 2, lambda place, run: run.stats()["staleness"])
    assert [behind for _, behind in found] == [9, 0]


def test_a_run_that_goes_back_to_an_earlier_state_has_its_period_again():
    """Else it would take itself for a slow one, beside what it has heard of before."""
    play, script = Script(2), [0, 1] * 4

    def body(place):
        _, optimizer, run = begun(place, varied(period=4, scaled=True))
        with run:
            play.play(place, optimizer, run, script)
            saved = deepcopy(run.state_dict())
            for _ in range(9):
                play.play(place, optimizer, run, script)
            run.load_state_dict(saved)
            before = run.stats()["exchanges_in_pairs"]
            play.play(place, optimizer, run, script * 3)
            return before, run.stats()["exchanges_in_pairs"], run.steps

    assert pliant.run_world(2, body, timeout_s=60) == [(1, 4, 16)] * 2


def test_bytes_are_those_predicted_and_heads():
    size, rounds = 5, 6
    what = varied(arrivals=2)
    script = [rank for _ in range(2 * rounds) for rank in range(size)]

    def sent(place, run):
        heads = sum(partner.channel._num_sent for partner in exchange_of(run)._partners.values())
        return run.stats()["sent_bytes"] - heads * 8 * (5 + size)

    tensor = TensorSpec(name="weight", shape=(NUMEL,), dtype="float32", layer="Inner", ready_s=0)
    workload = Workload(name="inner", tensors=(tensor,), forward_s=0.1, backward_s=0.1, step_s=0.01)
    found = simulate(plan_of(what), workload, Topology(hosts=(Host(name="a", num_ranks=size),)))
    assert [bodies for _, bodies in scripted(what, script, size, sent)] == [
        pytest.approx(2 * rounds * each, rel=1e-3)
        for each in found.sent_bytes  # in as many steps as are simulated
    ]
    changes = 4 * NUMEL * rounds
    assert [round(2 * rounds * each) for each in found.sent_bytes] == [
        changes + changes + changes // 2,  # to rank 1, to rank 2 and to rank 4, alone in a region of two
        changes,
        changes + changes,
        changes,
        changes // 2,
    ]


def test_a_saved_run_goes_on_to_the_bit_where_all_servers_stood():
    first, second, play = drawn(5, 25, 3), drawn(5, 30, 4), Script(5)

    def body(place):
        model, optimizer, run = begun(place, NODE)
        with run:
            play.play(place, optimizer, run, first)
            saved = deepcopy(run.state_dict())
            at = model.weight.detach().clone()
            wanted = play.play(place, optimizer, run, second, first.count(place.rank))
        model, optimizer, run = begun(place, NODE)
        with run:
            counters = saved[f"rank{place.rank}"]["pairs 0"]["counters"]
            spoiled = deepcopy(saved)
            spoiled[f"rank{place.rank}"]["pairs 0"]["counters"][2] = -1
            with pytest.raises(ValueError, match=r"the state is damaged: .* rules have counted .*-1"):
                run.load_state_dict(spoiled)
            run.load_state_dict(saved)
            with torch.no_grad():
                model.weight.copy_(at)
            found = play.play(place, optimizer, run, second, first.count(place.rank))
        posted = slice(5, None)  # nothing is, before a rank's first step
        return torch.equal(found[posted], wanted[posted]), counters[2].item(), model.weight.detach().clone()

    results = pliant.run_world(5, body, timeout_s=60)
    assert all(same for same, *_ in results)
    assert [count > 0 for _, count, _ in results] == [True, False, True, False, True]
    assert all(torch.equal(end, results[0][2]) for *_, end in results)


def test_what_servers_have_saved_stays_as_it_is_until_their_next_step():
    """Ranks 0 and 2 look at their state behind a meeting, while ranks 1 and 3 train on and ask them; then all close."""

    def body(place):
        _, optimizer, run = begun(place, varied(arrivals=1))
        with run:
            for _ in range(20):
                for _ in range(1 + place.rank):
                    step(place, optimizer, run)
                own = run.state_dict()[f"rank{place.rank}"]["slots"]["weight"]
                kept = {slot: tensor.clone() for slot, tensor in own.items()}
                exchange = exchange_of(run)
                if place.rank % 2:
                    while exchange._server.is_idle:
                        step(place, optimizer, run)
                else:
                    until(lambda exchange=exchange: exchange._partners[exchange.rank + 1]._deferred)
                    assert all(torch.equal(tensor, kept[slot]) for slot, tensor in own.items())
                    assert set(kept) >= {"region/point", "region/momentum", "region/gathered", "merged"}

    pliant.run_world(4, body, timeout_s=60)


def test_a_server_that_waits_for_a_meeting_takes_changes_and_asks_nothing():
    """Else a message with weights would be under way when all have come. It asks behind its next step."""
    exchanges = {}

    def body(place):
        _, optimizer, run = begun(place, NODE)
        with run:
            exchanges[place.rank] = mine = exchange_of(run)
            step(place, optimizer, run)
            place.comm.barrier()
            if place.rank == 3:
                until(lambda: all(exchanges[rank]._meets for rank in range(3)))
                while not exchanges[2]._rules[0].is_due:
                    step(place, optimizer, run)
                    until(lambda: mine._server.is_idle)
            run.state_dict()
            if place.rank == 2:
                assert mine._rules[0].is_due
                assert mine.exchanges_with(0) == 0
            step(place, optimizer, run)
            until(lambda: exchanges[2].exchanges_with(0) == 1)

    pliant.run_world(4, body, timeout_s=60)


def test_one_model_of_all_ranks_whenever_it_is_asked_for():
    """Ranks differ; their mean is given, and left behind by close()."""

    def body(place):
        model, optimizer, run = begun(place, NODE)
        with run:
            for _ in range(5 + place.rank):
                step(place, optimizer, run)
            run.state_dict()  # nothing is under way
            own, mean = model.weight.detach().clone(), run.consolidate()["weight"]
        return own, mean, model.weight.detach().clone()

    own, means, ends = map(torch.stack, zip(*pliant.run_world(4, body, timeout_s=60), strict=True))
    assert (own[0] - own[1:]).abs().max() > 1e-3
    torch.testing.assert_close(means, own.mean(0).expand_as(means))
    torch.testing.assert_close(ends, means)
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_an_error_on_one_rank_ends_all_and_names_it(lost):
    found = {}

    def body(place):
        _, optimizer, run = begun(place, pliant.halos(2, region_ranks=2, arrivals=2), timeout_s=300)
        try:
            with run:
                for number in range(1_000_000):
                    if place.rank == lost and number == 5:
                        raise KeyError("the user's own")
                    step(place, optimizer, run)
                    dawdle(0.001)
        except pliant.CommError as error:
            found[place.rank] = error
        except KeyError:
            until(lambda: len(found) == 3)

    pliant.run_world(4, body, timeout_s=60)
    assert {error.lost for error in found.values()} == {(lost,)}
    assert all(f"rank {lost} no longer takes part" in str(error) for error in found.values())


@pytest.mark.parametrize("bad", [0, 1])
def test_weights_that_are_not_finite_come_to_no_server(bad):
    """A server's own rank, and one that sends."""
    found = {}

    def body(place):
        model, optimizer, run = begun(place, pliant.halos(2, region_ranks=2, arrivals=2))
        try:
            with run:
                for number in range(1_000_000):
                    if place.rank == bad and number == 5:
                        with torch.no_grad():
                            model.weight[1] = torch.nan
                    step(place, optimizer, run)
                    dawdle(0.001)
        except (pliant.CommError, pliant.NonFiniteGradientError) as error:
            found[place.rank] = error
        assert place.rank == bad or model.weight.isfinite().all()

    pliant.run_world(3, body, timeout_s=60)
    assert isinstance(found[bad], pliant.NonFiniteGradientError)
    assert f"rank {bad} has a NaN or Inf in the weights of weight" in str(found[bad])
    assert all(found[rank].lost == (bad,) for rank in range(3) if rank != bad)


@pytest.mark.parametrize("what", [pliant.halos(), NEUTRAL], ids=["paper", "neutral"])
def test_one_rank_alone_is_its_own_server_and_with_neutral_settings_the_plain_optimizer(what):
    def body(place):
        ends = []
        for relaxed in (True, False):
            ddp = new_ddp(place)
            optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
            run = pliant.relax(ddp, optimizer, what, timeout_s=20) if relaxed else None
            train(ddp, optimizer, 0, range(17))
            if run is not None:
                assert run.stats()["sent_bytes"] == 0
                run.close()
            ends.append(weights(ddp))
        return torch.equal(*ends)

    assert pliant.run_world(1, body) == [what is NEUTRAL]


def test_a_switch_sets_out_from_the_mean_and_a_warm_up_before_it_is_exact():
    def body(place):
        ddp, found = new_ddp(place), []
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        halos = pliant.halos(2, region_ranks=2, arrivals=2)
        with pliant.relax(ddp, optimizer, pliant.after(3, pliant.allreduce(), then=halos), timeout_s=20) as run:
            train(run.model, optimizer, place.rank, range(3))
            found.append(weights(ddp).clone())
            train(run.model, optimizer, place.rank, range(3, 9))
            own = " and all 2 regions" in run.explain()
            for k, then in enumerate(("allreduce", halos, "diloco(2)", halos, "gossip(free=1)")):
                run.switch(then)
                found.append(weights(ddp).clone())
                train(run.model, optimizer, place.rank, range(9 + 4 * k, 13 + 4 * k))
        return torch.stack([*found, weights(ddp)]), own

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(found, results[0][0]) for found, _ in results)
    assert results[0][0].isfinite().all()
    assert [own for _, own in results] == [True, False, False]


def test_regions_have_servers_and_every_rank_a_way_to_all_others():
    node = RegionServers(region_ranks=3)
    for size in range(1, 12):
        near = node.neighbours(size)
        assert all(i in near[j] and i != j for i, ranks in enumerate(near) for j in ranks)
        assert sum(map(len, near)) == 2 * (size - 1)  # a tree
        reached = {0}
        for _ in range(2):
            reached |= {j for i in reached for j in near[i]}
        assert reached == set(range(size))
