"""Exchanges in pairs at a free pace: nobody waits for a slow or a stopped rank, and the mean of all weights stays."""

import threading

import pytest
import torch
from torch import nn

import pliant
from models import new_ddp, train, weights
from pliant.engine import pair_exchange
from pliant.engine.pair_channel import PairChannel
from pliant.engine.pair_exchange import PairExchange
from pliant.engine.weight_parts import BetweenSteps
from pliant.engine.with_partners import WithPartners
from pliant.spec import CodedGossip, Gossip, Graph
from waiting import dawdle, until

FREE = {"gossip": pliant.gossip(free=True), "choco": pliant.choco(free=True)}
kinds = pytest.mark.parametrize("kind", FREE)


def threads_left():
    return [t.name for t in threading.enumerate() if t.name.startswith("pliant-pair")]


def pairs_of(run):
    return run._executor.of(PairExchange)[0]


class Still:
    """A model whose steps change nothing, so that exchanges alone do."""

    def __init__(self, place, numel=1000):
        self.module = nn.Linear(numel, 1, bias=False)
        with torch.no_grad():
            self.module.weight.copy_(torch.zeros(1, numel))
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)
        self.rank = place.rank

    def begin(self, run):
        self.run, own = run, torch.Generator().manual_seed(self.rank)
        with torch.no_grad():
            self.module.weight.copy_(torch.randn(self.module.weight.shape, generator=own))
        return self.weight

    def step(self):
        self.run.model(torch.ones(1, self.module.in_features)).sum().backward()
        self.optimizer.step()

    @property
    def weight(self):
        return self.module.weight.detach().clone().double().view(-1)


def relaxed(place, still, what, **settings):
    return pliant.relax(still.module, still.optimizer, what, group=place.process_group, **{"timeout_s": 20, **settings})


@kinds
@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.extended)])
def test_the_mean_of_all_weights_is_kept_and_ranks_come_together(kind, size):
    """Whatever numbers of steps the ranks make, and however often all meet on the way."""

    def body(place):
        still = Still(place)
        with relaxed(place, still, FREE[kind]) as run:
            begun = still.begin(run)
            for _ in range(3):
                for _ in range(15 + 10 * place.rank):
                    still.step()
                run.state_dict()
            return begun, still.weight, run.stats()

    begun, ended, stats = zip(*pliant.run_world(size, body, timeout_s=60), strict=True)
    begun, ended = torch.stack(begun), torch.stack(ended)
    num = sum(each["exchanges_in_pairs"] for each in stats)
    assert num > 0
    torch.testing.assert_close(ended.mean(0), begun.mean(0), rtol=0, atol=1e-6 * (num + 10))
    assert ended.var(0).sum() < 0.5 * begun.var(0).sum()
    assert not threads_left()


@kinds
def test_training_with_ranks_of_different_speed_learns_and_ends_equal(kind):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, FREE[kind], timeout_s=20):
            losses = []
            for step in range(20 + 10 * place.rank):
                dawdle(0.002 * place.rank)
                losses += train(ddp, optimizer, place.rank, [step % 2])
        return weights(ddp), losses

    results = pliant.run_world(3, body, timeout_s=60)
    for found, losses in results:
        assert torch.equal(found, results[0][0])
        assert sum(losses[-2:]) < sum(losses[:2])


def test_no_thread_sees_weights_of_which_a_part_is_newer():
    """All elements of a rank are equal whenever a step has ended, and so they stay if no turn is ever torn apart."""

    def body(place):
        still = Still(place, numel=20_000)
        with relaxed(place, still, FREE["gossip"]) as run:
            still.begin(run)
            for step in range(60):
                with torch.no_grad():
                    still.module.weight.fill_(100.0 * place.rank + step)
                still.step()
                assert still.module.weight.min() == still.module.weight.max()
            return run.stats()["exchanges_in_pairs"]

    assert min(pliant.run_world(3, body, timeout_s=60)) > 0


def test_a_rank_that_computes_for_long_is_asked_and_answers():
    """Rank 1 makes no step until it has taken part in more exchanges; its threads alone can do that."""
    done = threading.Event()

    def body(place):
        still = Still(place)
        with relaxed(place, still, FREE["gossip"]) as run:
            still.begin(run)
            still.step()
            if place.rank == 1:
                before = run.stats()["exchanges_in_pairs"]
                until(lambda: run.stats()["exchanges_in_pairs"] > before + 10)
                done.set()
            while not done.is_set():
                still.step()
                dawdle(0.001)
            return run.stats()["staleness"]

    assert max(pliant.run_world(3, body, timeout_s=60)) >= 0


@kinds
def test_a_stopped_rank_costs_the_others_nothing_and_comes_back(kind, monkeypatch):
    """Its threads hear nothing, as under SIGSTOP; then the others exchange among themselves, and later with it."""
    monkeypatch.setattr(pair_exchange, "_GRACE_S", 0.05)
    going, stopped = threading.Event(), threading.Event()
    exchanges, hear = {}, PairChannel.hear

    def hear_unless_stopped(self):
        head = hear(self)
        if stopped.is_set() and threading.current_thread() in held:
            going.wait(250)
        return head

    monkeypatch.setattr(PairChannel, "hear", hear_unless_stopped)
    held = set()

    def body(place):
        still = Still(place)
        with relaxed(place, still, FREE[kind], timeout_s=200) as run:
            begun = still.begin(run)
            still.step()
            if place.rank == 2:
                held.update(partner._thread for partner in pairs_of(run)._partners.values())
                stopped.set()
                until(lambda: all(exchanges.get(rank, 0) > 30 for rank in (0, 1)), lambda: exchanges)
                before = run.stats()["exchanges_in_pairs"]
                going.set()
                until(lambda: run.stats()["exchanges_in_pairs"] > before + 5)
                exchanges["back"] = 1
            else:
                until(stopped.is_set)
                before = run.stats()["exchanges_in_pairs"]
                while "back" not in exchanges:
                    still.step()
                    dawdle(0.001)
                    exchanges[place.rank] = run.stats()["exchanges_in_pairs"] - before
            run.state_dict()
            return begun, still.weight

    begun, ended = map(torch.stack, zip(*pliant.run_world(3, body, timeout_s=250), strict=True))
    torch.testing.assert_close(ended.mean(0), begun.mean(0), rtol=0, atol=1e-3)


@kinds
def test_two_ranks_that_ask_each_other_at_once_exchange_once(kind, monkeypatch):
    """Both have asked before either hears: the lower one leads, and both count one exchange of the same number."""
    both, hear = threading.Barrier(2), PairChannel.hear

    def hear_when_both_have_asked(self):
        if self._num_heard == 0:
            both.wait(250)
        return hear(self)

    monkeypatch.setattr(PairChannel, "hear", hear_when_both_have_asked)

    def body(place):
        still = Still(place)
        what = FREE[kind]
        with relaxed(place, still, what) as run:
            begun = still.begin(run)
            monkeypatch.setattr(pairs_of(run), "_timing", pliant.gossip(period=100, free=True).timing)
            pairs_of(run)._last = -100
            still.step()  # asks, and both threads hear from here on
            until(lambda: run.stats()["exchanges_in_pairs"] == 1)
            run.state_dict()
            return begun, still.weight, run.stats()["exchanges_in_pairs"]

    (a, x, m), (b, y, n) = pliant.run_world(2, body, timeout_s=60)
    assert m == n == 1
    torch.testing.assert_close(x + y, a + b, rtol=0, atol=1e-5)
    if kind == "gossip":
        torch.testing.assert_close(x, (a + b) / 2, rtol=0, atol=1e-5)


def test_what_a_rank_has_saved_stays_as_it_is_until_its_next_step_and_it_may_close_while_it_is_asked():
    """Rank 0 looks at its state after a meeting, while rank 1 trains on and asks it; then rank 0 closes at once."""
    asked = threading.Event()

    def body(place):
        still = Still(place)
        with relaxed(place, still, FREE["choco"]) as run:
            still.begin(run)
            for _ in range(5):
                still.step()
            own = run.state_dict()[f"rank{place.rank}"]["slots"]["weight"]
            kept = {slot: tensor.clone() for slot, tensor in own.items()}
            if place.rank == 1:
                while not pairs_of(run)._asked or pairs_of(run)._asked.is_idle:
                    still.step()
                asked.set()
            else:
                until(asked.is_set)
                until(lambda: pairs_of(run)._partners[1]._deferred)
                assert all(torch.equal(tensor, kept[slot]) for slot, tensor in own.items())
        return still.weight

    x, y = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(x, y)


@pytest.mark.parametrize("late", ["count_exchange", "end_exchange"])
def test_an_exchange_counts_before_all_ranks_may_meet(late, monkeypatch):
    """Else a checkpoint lacks one whose last words come late, on a rank that is asked while it waits for the others."""
    told = getattr(WithPartners, late)
    monkeypatch.setattr(WithPartners, late, lambda self, value: (self.rank or dawdle(0.05), told(self, value)))

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, FREE["choco"], timeout_s=20) as run:
            for step in range(8):
                dawdle(0.01 * place.rank)
                train(ddp, optimizer, place.rank, [step])
            run.state_dict()
            counted = run.stats()["exchanges_in_pairs"]
            dawdle(0.2)  # for what would still count
            return counted, run.stats()["exchanges_in_pairs"]

    for counted, later in pliant.run_world(3, body, timeout_s=60):
        assert counted == later > 0


@kinds
def test_save_load_and_continue(kind, tmp_path):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        with pliant.relax(ddp, optimizer, FREE[kind], timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(8))
            run.save(tmp_path / "saved")
            saved, exchanges = weights(ddp).clone(), run.stats()["exchanges_in_pairs"]
        again = new_ddp(place, seed=5)
        other = torch.optim.SGD(again.parameters(), lr=0.05, momentum=0.9)
        with pliant.load_run(tmp_path / "saved", again, other, timeout_s=20) as run:
            assert torch.equal(weights(again), saved)
            assert run.stats()["exchanges_in_pairs"] == exchanges
            train(again, other, place.rank, range(8, 16))
        return weights(again)

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(x, results[0]) for x in results)


def test_switching_there_and_back():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, "allreduce", timeout_s=20) as run:
            for k, what in enumerate((*FREE.values(), "local_sgd(2)", FREE["gossip"], "allreduce")):
                train(ddp, optimizer, place.rank, range(4 * k, 4 * k + 4))
                run.switch(what)
            train(ddp, optimizer, place.rank, range(20, 24))
            return weights(ddp).clone()

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(x, results[0]) for x in results)
    assert not threads_left()


@kinds
def test_an_error_on_one_rank_ends_all_and_names_it(kind):
    found = {}

    def body(place):
        still = Still(place)
        try:
            with relaxed(place, still, FREE[kind], timeout_s=300) as run:
                still.begin(run)
                for step in range(1_000_000):
                    if place.rank == 1 and step == 4:
                        raise KeyError("the user's own")
                    still.step()
                    dawdle(0.001)
        except pliant.CommError as error:
            found[place.rank] = error
        except KeyError:
            until(lambda: len(found) == 3)

    pliant.run_world(4, body, timeout_s=60)
    assert {error.lost for error in found.values()} == {(1,)}
    assert all("rank 1 no longer takes part" in str(error) for error in found.values())


def test_weights_that_are_not_finite_are_not_sent():
    found = {}

    def body(place):
        still = Still(place)
        try:
            with relaxed(place, still, FREE["gossip"]) as run:
                still.begin(run)
                for step in range(1_000_000):
                    if place.rank == 1 and step == 3:
                        with torch.no_grad():
                            still.module.weight.view(-1)[7] = torch.nan
                    still.step()
                    dawdle(0.001)
        except (pliant.CommError, pliant.NonFiniteGradientError) as error:
            found[place.rank] = error
        assert place.rank == 1 or still.module.weight.isfinite().all()

    pliant.run_world(3, body, timeout_s=60)
    assert isinstance(found[1], pliant.NonFiniteGradientError)
    assert "rank 1 has a NaN or Inf in the weights of weight" in str(found[1])
    assert found[0].lost == found[2].lost == (1,)


def test_a_rank_that_gives_no_sign_of_life_ends_a_meeting_and_is_named(monkeypatch):
    """Rank 1 finds out, and rank 0, which would wait for longer, hears from it which rank is silent."""
    hear, held, going = PairChannel.hear, set(), threading.Event()

    def hear_unless_stopped(self):
        head = hear(self)
        if threading.current_thread() in held:
            going.wait(250)
        return head

    monkeypatch.setattr(PairChannel, "hear", hear_unless_stopped)
    found = {}

    def body(place):
        still = Still(place)
        try:
            with relaxed(place, still, FREE["gossip"], timeout_s=2 if place.rank == 1 else 50) as run:
                still.begin(run)
                for _ in range(3):
                    still.step()
                if place.rank == 2:
                    held.update(partner._thread for partner in pairs_of(run)._partners.values())
                    until(lambda: len(found) == 2)
                    going.set()
        except pliant.CommError as error:
            found[place.rank] = error

    pliant.run_world(3, body, timeout_s=60)
    assert found[0].lost == found[1].lost == (2,)
    assert "rank 2 has given no sign of life for 2s" in str(found[1])
    assert "since rank 2 no longer takes part" in str(found[0])


def test_a_bound_lets_a_rank_wait_for_its_own_exchange(monkeypatch):
    """Rank 1 hears nothing for a while, and rank 0 makes as many steps beside its question as the bound allows."""
    monkeypatch.setattr(pair_exchange, "_GRACE_S", 250.0)
    hear, going, done = PairChannel.hear, threading.Event(), [0]

    def hear_late(self):
        if self._comm.rank == 1:
            going.wait(250)
        return hear(self)

    monkeypatch.setattr(PairChannel, "hear", hear_late)

    def body(place):
        still = Still(place)
        with relaxed(place, still, pliant.gossip(free=True, staleness=3), timeout_s=200) as run:
            still.begin(run)
            if place.rank == 1:
                until(lambda: done[0] == 3)
                dawdle(0.3)  # so that it could go further
                assert done[0] == 3
                going.set()
                return
            for _ in range(8):
                still.step()
                done[0] += 1

    pliant.run_world(2, body, timeout_s=250)


def test_a_graph_that_falls_apart_is_refused():
    half = ((0.5, 0.5, 0, 0), (0.5, 0.5, 0, 0), (0, 0, 0.5, 0.5), (0, 0, 0.5, 0.5))

    def body(place):
        still = Still(place)
        what = pliant.gossip(Graph(kind="matrix", rows=half), free=True)
        with pytest.raises(ValueError, match=r"from rank 0 to ranks \[0, 1\] only, and never to \[2, 3\]"):
            relaxed(place, still, what)
        return True

    assert all(pliant.run_world(4, body, timeout_s=30))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CodedGossip(pace="free"), "gamma must be above 0 at a free pace, got 0"),
        (lambda: Gossip(staleness=2), "staleness must be 0 in lockstep"),
        (lambda: pliant.between_hosts(pliant.gossip(free=True)), "inner must not meet in pairs at a free pace"),
        (lambda: pliant.choco(staleness=1), "staleness must be 0 in lockstep"),
    ],
)
def test_what_has_no_meaning_at_a_free_pace_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("kind", ["ring", "one_peer", "exponential", "hypercube", "grid", "matching", "round_robin"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_neighbours_are_mutual_and_those_of_all_steps(kind, size):
    graph = Graph(kind=kind)
    found = graph.neighbours(size)
    assert all(i in found[j] and i != j for i, near in enumerate(found) for j in near)
    for step in range(12):
        for i, row in enumerate(graph.mixing(step, size)):
            assert row.keys() - {i} <= found[i]


def test_a_plan_may_hold_lockstep_averages_and_pairs():
    """Each has comms and threads of its own; the mean of each group's weights becomes that of all."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        what = pliant.partition(
            {"hidden.*": pliant.gossip(free=True), "back.*": pliant.async_average(), "*": pliant.local_sgd(2)}
        )
        with pliant.relax(ddp, optimizer, what, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(6))
            kinds = [type(part).__name__ for part in run._executor.of(BetweenSteps)]
        return weights(ddp), kinds

    results = pliant.run_world(3, body, timeout_s=60)
    assert all(torch.equal(x, results[0][0]) for x, _ in results)
    assert results[0][1] == ["WeightExchange", "BackgroundAverage", "PairExchange"]
