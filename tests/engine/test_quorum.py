"""Averages at a free pace with a quorum: who counts, with which weight, and what becomes of all others' progress."""

import random
import threading

import pytest
import torch

import pliant
from models import Inner, new_ddp, train, weights
from pliant.algorithms.executors.local_steps import LocalStepsExecutor
from pliant.algorithms.plans import plan_of
from pliant.engine import attendance
from pliant.engine.attendance import Attendance, seconds_left, share_of
from pliant.engine.background_average import BackgroundAverage
from pliant.simulator import simulate
from pliant.spec import Host, LocalSteps, Outer, TensorSpec, Topology, Workload
from waiting import dawdle, made_up_clock, until

SIZE = 3
OUTER = Outer(lr=0.5, momentum=0.5)


def gradient(rank, step):
    return torch.randn(4, generator=torch.Generator().manual_seed(100 * rank + step))


class Told:
    """What ranks bring to rounds: changes, and shares of the mean times their number, in the order of rounds."""

    def __init__(self, monkeypatch):
        self.changes = [[] for _ in range(SIZE)]
        self.shares = [[] for _ in range(SIZE)]
        exchange = LocalStepsExecutor.exchange_weights

        def noted(executor, bucket, state, comm, context):
            self.changes[comm.rank].append(state.flat["anchor"] - bucket.flat)
            self.shares[comm.rank].append(context.share)
            return exchange(executor, bucket, state, comm, context)

        monkeypatch.setattr(LocalStepsExecutor, "exchange_weights", noted)


def scripted(what, script, *, work=lambda _: 0.0, between=lambda _: None):
    """Let one rank at a time make a step, with no round under way; a thread takes part from its rank's first on.

    Returned are, of each rank, the posted weights, rounds and sent bytes behind each step, and the weights at last.
    """
    turns, averages = threading.Barrier(SIZE), {}

    def body(place):
        model, rows = Inner(4), ([], [], [])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=60) as run:
            [averages[place.rank]] = run._executor.of(BackgroundAverage)
            turns.wait(20)
            num_steps = 0
            for at, rank in enumerate(script):
                if place.rank == rank:
                    between(at)
                    optimizer.zero_grad()
                    run.model(gradient(rank, num_steps)).backward()
                    run.count(work(rank))
                    optimizer.step()
                    num_steps += 1
                turns.wait(20)
                last = max(each._calls.last for each in averages.values())
                until(lambda last=last: all(each._round == last for each in averages.values()))
                rows[0].append(averages[place.rank]._parts[0].bucket.flat.clone())
                rows[1].append(averages[place.rank].rounds[0])
                rows[2].append(run.stats()["sent_bytes"])
                turns.wait(20)
        return *rows, model.weight.detach().clone()

    return pliant.run_world(SIZE, body, timeout_s=60)


def expected(script, period, quorum, outer, weight):
    """Return (posted weights behind each step, shares of each round) by the paper's box, with a rank at a time."""
    theta, momentum, x = torch.zeros(4), torch.zeros(4), torch.zeros(SIZE, 4)
    since, made, posted, shares = [0] * SIZE, [0] * SIZE, [], []
    for rank in script:
        x[rank] -= gradient(rank, made[rank])
        since[rank], made[rank] = since[rank] + 1, made[rank] + 1
        over = [steps >= period for steps in since]
        if sum(over) >= quorum and over[rank]:
            shared = torch.tensor([weight(r, since[r]) if over[r] else 0.0 for r in range(SIZE)])
            d = (shared / shared.sum()) @ (theta - x)
            momentum = outer.momentum * momentum + d
            new = theta - outer.lr * (d + outer.momentum * momentum)
            for r in range(SIZE):
                x[r] = new if over[r] else x[r] + (new - theta)
            theta, since = new, [0 if over[r] else since[r] for r in range(SIZE)]
            shares.append((SIZE * shared / shared.sum()).tolist())
        posted.append(x.clone())
    return posted, shares


def row(waited_s, *, leaving=False, weight=1.0):
    return Attendance(weight=weight, leaving=leaving, exchanges=0, waited_s=waited_s)


@pytest.mark.parametrize(
    ("waited", "quorum", "grace_s", "left_s"),
    [
        ([0, -1, -1], 2, 0, float("inf")),
        ([0, 3, -1], 2, 0, 0),
        ([1, 3, -1], 2, 5, 4),
        ([5, 3, -1], 2, 5, 2),
        ([5, 6, -1], 2, 5, 0),
        ([0, 0, 0], 2, 5, 0),
        ([0, -1, -1], 1, 5, 5),
        ([0, 0, -1], 3, 0, float("inf")),
    ],
)
def test_a_round_waits_for_its_quorum_and_then_for_its_grace(waited, quorum, grace_s, left_s):
    assert seconds_left([row(x) for x in waited], quorum, grace_s) == left_s


def test_a_rank_that_waits_for_the_end_counts_and_is_not_kept_waiting():
    assert seconds_left([row(-1, leaving=True), row(0), row(-1)], 2, 5) == 5
    assert seconds_left([row(-1, leaving=True), row(-1, leaving=True), row(-1)], 2, 5) == 0
    assert seconds_left([row(-1, leaving=True)] * 3, 3, 5) == 0


def test_shares_are_of_those_that_count():
    rows = [row(0, weight=3), row(-1, weight=9), row(0, leaving=True, weight=1)]
    assert [share_of(r, rows, weighted=True) for r in range(3)] == [2.25, 0, 0.75]
    assert [share_of(r, rows, weighted=False) for r in range(3)] == [1.5, 0, 1.5]
    idle = [row(0, weight=0), row(-1), row(0, weight=0)]
    assert [share_of(r, idle, weighted=True) for r in range(3)] == [1.5, 0, 1.5]


WORKS = {
    "steps": (lambda _: 0.0, lambda _, steps: steps),
    "tokens": (lambda rank: 10.0 * (rank + 1), lambda rank, steps: (10.0 * (rank + 1)) ** 2 * steps),
}
"""Work that a rank reports in a step, and its weight by tokens * (tokens / steps), after so many steps."""


@pytest.mark.parametrize("works", WORKS)
def test_fast_ranks_go_on_at_their_pace_and_the_slow_one_counts_by_the_rule(works, monkeypatch):
    """Rank 2 makes a step while the others make four. Every other algorithm would count it in each round."""
    told, (work, weight) = Told(monkeypatch), WORKS[works]
    script = [0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 0, 2, 1, 1, 0, 0]  # rank 2 ends its period with its second step
    what = LocalSteps(period=2, outer=OUTER, pace="free", weighted=True, quorum=2)
    found = scripted(what, script, work=work)
    posted, shares = expected(script, 2, 2, OUTER, weight)
    assert [bool(share[2]) for share in shares] == [False, False, True, False]
    assert found[0][1][-1] == len(shares)
    for rank, (seen, *_) in enumerate(found):
        torch.testing.assert_close(torch.stack(seen), torch.stack([x[rank] for x in posted]))
        torch.testing.assert_close(torch.tensor(told.shares[rank][:4]), torch.tensor([s[rank] for s in shares]))


def test_a_period_and_the_work_that_counts_in_it_begin_behind_a_warm_up(monkeypatch):
    told, turns, averages = Told(monkeypatch), threading.Barrier(SIZE), {}
    what = pliant.after(3, pliant.allreduce(), then=pliant.async_average(4))

    def body(place):
        model, rounds = Inner(4), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=60) as run:
            [averages[place.rank]] = run._executor.of(BackgroundAverage)
            for rank in (*[place.rank] * 3, 1, 2, 0, 0, 0, 0):
                if place.rank == rank:
                    optimizer.zero_grad()
                    run.model(gradient(rank, run.steps)).backward()
                    optimizer.step()
                turns.wait(20)
                last = max(each._calls.last for each in averages.values())
                until(lambda last=last: all(each._round == last for each in averages.values()))
                rounds.append(averages[place.rank].rounds[0])
                turns.wait(20)
        return rounds

    assert pliant.run_world(SIZE, body, timeout_s=60) == [[0] * 8 + [1]] * SIZE
    assert [shares[0] for shares in told.shares] == [2.0, 0.5, 0.5]  # of 4 steps, 1 and 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("quorum", [1, 2, 3])
def test_each_change_of_each_rank_is_part_of_one_round(quorum, seed, monkeypatch):
    """Whoever steps when: what ranks bring to rounds, with the last as all close, is all that they have done."""
    told, chance = Told(monkeypatch), random.Random(seed)
    script = [0, 1, 2, *(chance.choice((0, 0, 0, 1, 1, 2)) for _ in range(24))]
    what = LocalSteps(period=3, outer=OUTER, pace="free", weighted=True, quorum=quorum)
    found = scripted(what, script)
    posted, shares = expected(script, 3, quorum, OUTER, lambda _, steps: steps)
    assert found[0][1][-1] == len(shares)
    for rank, (seen, *_, last) in enumerate(found):
        torch.testing.assert_close(torch.stack(seen), torch.stack([x[rank] for x in posted]))
        done = torch.stack([torch.zeros(4), *(gradient(rank, step) for step in range(script.count(rank)))]).sum(0)
        torch.testing.assert_close(torch.stack(told.changes[rank]).sum(0), done)
        assert torch.equal(last, found[0][-1])


def test_a_grace_waits_for_others_and_costs_no_step(monkeypatch):
    """The clock stands still but for what the script says. Rank 0 steps on, and calls again as the grace is over."""
    clock = made_up_clock()
    monkeypatch.setattr(attendance, "time", clock)
    told = Told(monkeypatch)
    what = LocalSteps(period=2, outer=OUTER, pace="free", weighted=True, quorum=1, grace_s=10)
    script = [0, 1, 2, 0, 0, 1, 0, 0, 0, 0, 1, 1, 2]
    pauses = {5: 4.0, 6: 5.0, 7: 1.0}
    found = scripted(what, script, between=lambda at: clock.sleep(pauses.get(at, 0.0)))
    # After 9 s rank 0 calls nothing, after 10 s it does, and rank 1 is ready. Then all are, and no grace is needed.
    assert found[0][1] == [0] * 7 + [1] * 5 + [2]
    assert [[round(share, 2) for share in shares[:2]] for shares in told.shares] == [[2.14, 1], [0.86, 1], [0, 1]]


def test_a_round_sends_what_is_predicted_and_each_call_a_number_and_a_table():
    """Of 8 bytes around the ring, and of four numbers a rank to all."""
    twin, script = LocalSteps(period=2), [0, 1, 2, 0, 1]
    tensor = TensorSpec(name="weight", shape=(4,), dtype="float32", layer="Inner", ready_s=0)
    workload = Workload(name="inner", tensors=(tensor,), forward_s=0.1, backward_s=0.1, step_s=0.01)
    predicted = simulate(plan_of(twin), workload, Topology(hosts=(Host(name="a", num_ranks=SIZE),)))
    what = LocalSteps(period=2, pace="free", weighted=True, quorum=2)
    for rank, (_, rounds, sent, _) in enumerate(scripted(what, script)):
        assert rounds == [0, 0, 0, 0, 1]
        call = 8 + 32 * (SIZE - 1)
        assert sent[3] - sent[2] == call
        assert sent[4] - sent[3] == round(2 * predicted.sent_bytes[rank]) + call


@pytest.mark.parametrize("averaging", ["allreduce", "int4", "topk(0.3)"])
def test_nobody_waits_for_a_rank_that_stops_for_a_while(averaging):
    """Rank 2 makes no step until the others have had rounds without it; then it counts again, and all end equal."""
    what = pliant.decoupled_diloco(2, averaging=pliant.parse(averaging), grace_s=0.01)
    far = threading.Event()

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with pliant.relax(ddp.module, optimizer, what, group=place.process_group, timeout_s=60) as run:
            [averages] = run._executor.of(BackgroundAverage)
            train(run.model, optimizer, place.rank, range(4))
            if place.rank == 2:
                before, lasted = averages.rounds[0], averages._parts[0].last
                until(lambda: averages.rounds[0] > before + 5)
                assert averages._parts[0].last <= lasted + 4
                far.set()
            step = 4
            while not far.is_set() or step < 12:
                train(run.model, optimizer, place.rank, [step])
                dawdle(0.002 * place.rank)
                step += 1
            run.state_dict()
            train(run.model, optimizer, place.rank, range(step, step + 3))
        return weights(ddp)

    ends = pliant.run_world(SIZE, body, timeout_s=60)
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_a_quorum_goes_on_behind_a_checkpoint_and_a_switch():
    def body(place):
        model, found = Inner(4), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        what = LocalSteps(period=2, pace="free", weighted=True, quorum=1)
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=60) as run:
            for step in range(5 + place.rank):
                optimizer.zero_grad()
                run.model(gradient(place.rank, step)).backward()
                optimizer.step()
            state = run.state_dict()
            found.append(model.weight.detach().clone())
            run.load_state_dict(state)
            run.switch("local_sgd")
            found.append(model.weight.detach().clone())
            run.switch(pliant.decoupled_diloco(1))
        return torch.stack([*found, model.weight.detach()])

    results = pliant.run_world(SIZE, body, timeout_s=60)
    for found in results:
        torch.testing.assert_close(found, results[0])
        torch.testing.assert_close(found[0], found[1])


def test_a_quorum_that_can_never_come_is_refused_before_anything_is_lost():
    said = "once the periods of 4 ranks are over, but there are 2, .* set a quorum of at most 2, or of -1"

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pytest.raises(ValueError, match=said):
            pliant.relax(ddp, optimizer, pliant.decoupled_diloco(quorum=4))
        with pliant.relax(ddp, optimizer, "diloco", timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(2))
            with pytest.raises(ValueError, match=said):
                run.switch(pliant.decoupled_diloco(quorum=4))
            train(ddp, optimizer, place.rank, range(2, 4))
            assert run.steps == 4

    pliant.run_world(2, body, timeout_s=60)


def test_rules_at_a_free_pace_have_one_quorum():
    one, other = pliant.decoupled_diloco(), pliant.async_average()
    with pytest.raises(ValueError, match="two rules have different quorums or graces at a free pace"):
        pliant.partition({"a": one, "*": other})
    for apart in (pliant.gossip(free=True), pliant.diloco(), pliant.decoupled_diloco(8)):
        assert len(pliant.partition({"a": one, "*": apart}).rules) == 2
