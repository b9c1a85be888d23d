"""Outer optimizers: a momentum gathered early or late, asynchronous rounds, Muon inside, and what a run says."""

import threading
from copy import deepcopy

import pytest
import torch
from torch import nn

import pliant
from models import Inner, new_ddp, train, weights
from pliant.engine import background_average
from pliant.engine.attendance import gather_attendance
from pliant.engine.background_average import BackgroundAverage
from pliant.spec import LocalSteps, Outer
from waiting import until

WARMUP = 8
PIER = pliant.pier(40, 4, warmup_steps=WARMUP, outer_momentum=0.6)
CODED = pliant.pier(40, 4, warmup_steps=WARMUP, outer_momentum=0.6, first=pliant.int4())
EXACT = pliant.after(WARMUP, pliant.allreduce(), then=PIER.then)


def gathered(run, rank, slot="momentum"):
    """Return a slot of all parameters of a rank, float32 (numel,); what is in flight is settled."""
    slots = run.state_dict()[f"rank{rank}"]["slots"]
    return torch.cat([torch.empty(0), *(of[slot].flatten() for of in slots.values() if slot in of)])


def thetas(outer, changes):
    """Return the common point after rounds of one rank with these changes."""

    def body(place):
        model, found = Inner(5), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        what = LocalSteps(period=1, outer=outer)
        with pliant.relax(model, optimizer, what, group=place.process_group) as run:
            for change in changes:
                optimizer.zero_grad()
                run.model(change).backward()
                optimizer.step()
                found.append(model.weight.detach().clone())
        return torch.stack(found)

    return pliant.run_world(1, body)[0]


def nesterov(lr, momentum, changes):
    """Return the same by torch's SGD."""
    theta, found = nn.Parameter(torch.zeros(5)), []
    optimizer = torch.optim.SGD([theta], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for theta.grad in changes:
        optimizer.step()
        found.append(theta.detach().clone())
    return torch.stack(found)


def drawn(number):
    return torch.randn(number, 5, generator=torch.Generator().manual_seed(number))


def test_one_round_to_a_step_of_the_momentum_is_nesterov():
    changes = drawn(6)
    torch.testing.assert_close(thetas(Outer(lr=0.7, momentum=0.9), changes), nesterov(0.7, 0.9, changes))


@pytest.mark.parametrize("every", [2, 4])
def test_as_many_equal_rounds_as_a_step_takes_are_one_step_of_nesterov(every):
    """Each has its part of the rate, as an arrival has in the paper."""
    changes = drawn(3)
    late = thetas(Outer(lr=0.7 / every, momentum=0.9, every=every), changes.repeat_interleave(every, 0))
    torch.testing.assert_close(late[every - 1 :: every], nesterov(0.7, 0.9, changes))
    early = nesterov(0.7 / every, 0.9, changes.repeat_interleave(every, 0))  # the momentum in each round
    assert (late[-1] - early[-1]).abs().max() > 0.1


def test_a_changed_rate_does_not_change_what_the_momentum_holds():
    """At three quarters of the training the rate has halved, and moves the momentum half as far."""
    outer = Outer(lr=0.8, momentum=0.5, lr_points=((0.5, 0.8), (0.75, 0.4)), total_steps=4)
    found = thetas(outer, torch.ones(3, 5))[:, 0]
    m = (1.0, 1.5, 1.75)
    wanted = [-0.8 * (1 + 0.5 * m[0]), -0.8 * (1 + 0.5 * m[1]), -0.4 * (1 + 0.5 * m[2])]
    torch.testing.assert_close(found, torch.tensor(wanted).cumsum(0))


# - Pier


def trained(place, what, steps, **options):
    ddp = new_ddp(place)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with pliant.relax(ddp, optimizer, what, agreement_every=2, timeout_s=20, **options) as run:
        seen = []
        for step in range(steps):
            train(run.model, optimizer, place.rank, [step])
            seen.append(weights(ddp).clone())
        return torch.stack(seen), run.stats(), gathered(run, place.rank)


@pytest.mark.parametrize(
    ("around", "steps"),
    [
        *((lambda node: node, WARMUP), (pliant.between_hosts, 6)),
        *(
            pytest.param(*row, marks=pytest.mark.extended)
            for row in ((lambda node: node, 6), (pliant.between_hosts, WARMUP))
        ),
    ],
)
def test_what_gathers_in_an_exact_warm_up_changes_and_sends_nothing(around, steps):
    def body(place):
        pairs = [trained(place, around(what), steps, hosts=[[0, 1], [2]]) for what in (PIER, EXACT)]
        assert torch.equal(pairs[0][0], pairs[1][0])
        return [(stats["sent_bytes"], stats["sent_messages"]) for _, stats, _ in pairs]

    for here, exact in pliant.run_world(3, body, timeout_s=60):
        assert here == exact
        assert here[0] > 0


@pytest.mark.parametrize("what", [PIER, CODED], ids=["exact", "coded"])
def test_a_momentum_takes_the_changes_of_the_periods_of_a_warm_up(what):
    def body(place):
        seen, _, momentum = trained(place, what, WARMUP)
        start = weights(new_ddp(place))
        mu = what.then.outer.momentum_at(0)
        wanted = mu * (start - seen[3]) + seen[3] - seen[7]
        torch.testing.assert_close(momentum, wanted)
        assert momentum.norm() > 0
        # The first round finds it, and falls to what is set for the step.
        seen, _, later = trained(place, what, WARMUP + 4)
        mu = what.then.outer.momentum_at(WARMUP + 4)
        assert mu < what.then.outer.momentum
        change = later - mu * wanted
        torch.testing.assert_close(seen[-1], seen[WARMUP - 1] - 0.7 * (change + mu * later))
        _, _, without = trained(place, pliant.after(WARMUP, what.first, then=what.then), WARMUP + 4)
        assert (later - without).norm() > 0.1 * later.norm()

    pliant.run_world(2, body, timeout_s=60)


@pytest.mark.parametrize("saved_at", [5, WARMUP, *(pytest.param(at, marks=pytest.mark.extended) for at in (3, 10))])
def test_a_warm_up_that_gathers_goes_on_to_the_bit(saved_at):
    def body(place):
        whole, _, momentum = trained(place, PIER, 14)
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, PIER, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(saved_at))
            state, model = deepcopy(run.state_dict()), deepcopy(ddp.module.state_dict())  # before closing averages
        again = new_ddp(place, seed=1)
        again.module.load_state_dict(model)
        other = torch.optim.SGD(again.parameters(), lr=0.05)
        with pliant.relax(again, other, PIER, timeout_s=20) as run:
            run.load_state_dict(state)
            train(again, other, place.rank, range(saved_at, 14))
            assert torch.equal(weights(again), whole[-1])
            assert torch.equal(gathered(run, place.rank), momentum)

    pliant.run_world(2, body, timeout_s=60)


# - A free pace


def test_who_waits_for_others_does_not_spend_the_momentum():
    """Rounds without a period behind them leave it as it is, though there are many."""
    averages = {}

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        what = pliant.delayed_nesterov(1, every=1, outer_momentum=0.9)
        with pliant.relax(ddp, optimizer, what, timeout_s=20) as run:
            [averages[place.rank]] = run._executor.of(BackgroundAverage)
            train(ddp, optimizer, place.rank, range(8))
            before = gathered(run, place.rank)
            if place.rank == 1:
                until(lambda: averages[0]._leaving)
                optimizer.param_groups[0]["lr"] = 0.0
                train(ddp, optimizer, place.rank, [8])
                rounds = averages[1].rounds[0]
                until(lambda: averages[1].rounds[0] > rounds + 5)
            return before, gathered(run, place.rank)

    for before, after in pliant.run_world(2, body, timeout_s=60):
        assert before.norm() > 0
        torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


def test_the_steps_of_a_rank_from_round_to_round_follow_its_pace(monkeypatch):
    """Rank 1 is half as fast: of the period of 8 it makes 4 steps, and counts for a third."""
    all_there, told = threading.Barrier(2), {0: [], 1: []}

    def noted(mine, comm):
        if not mine.leaving:
            told[comm.rank].append(mine.weight)
        return gather_attendance(mine, comm)

    monkeypatch.setattr(background_average, "gather_attendance", noted)

    def body(place):
        module = new_ddp(place).module  # DDP's ranks meet in their first step
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        what = pliant.delayed_nesterov(8)
        with pliant.relax(module, optimizer, what, group=place.process_group, timeout_s=60) as run:
            [averages] = run._executor.of(BackgroundAverage)
            for step in range(32):
                if place.rank == 1:
                    if step % 2:
                        train(run.model, optimizer, 1, [step])
                    all_there.wait(250)  # so that rank 0, which calls, steps last
                else:
                    all_there.wait(250)
                    train(run.model, optimizer, 0, [step])
                    until(lambda: averages._calls.last == averages._round)
                all_there.wait(250)

    pliant.run_world(2, body, timeout_s=60)
    assert told[0][:3] == [8, 8, 8]
    assert told[1][:3] == [4, 4, 4]


# - Muon


def muon_and_adamw(module):
    matrices = [p for p in module.parameters() if p.ndim == 2]
    others = [p for p in module.parameters() if p.ndim != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-2)]


def trained_by_muon(place, what, **options):
    ddp = new_ddp(place)
    optimizers = muon_and_adamw(ddp.module)
    with pliant.relax(ddp, optimizers, what, timeout_s=20, **options) as run:
        for step in range(8):
            train(ddp, optimizers[0], place.rank, [step], before_step=optimizers[1].step)
            optimizers[1].zero_grad()
        plan = run.plan
    return weights(ddp), plan


@pytest.mark.parametrize("what", ["muloco", pliant.muloco(4), pliant.muloco(6, fragments=3, delay_steps=2)], ids=str)
def test_muon_inside_trains_with_an_outer_step(what):
    def body(place):
        end, plan = trained_by_muon(place, what)
        assert plan.rules[-1].exchange == (pliant.muloco() if what == "muloco" else what)
        return end, weights(new_ddp(place))

    results = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(*results[0])


def test_muon_is_asked_for_in_a_sentence_before_anything_is_lost():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.AdamW(ddp.parameters())
        said = r"settings for Muon inside, but this run steps with AdamW; give relax\(\) \[Muon\(matrices\), AdamW"
        with pytest.raises(ValueError, match=said):
            pliant.relax(ddp, optimizer, "muloco")
        with pliant.relax(ddp, optimizer, "diloco", timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(2))
            with pytest.raises(ValueError, match=said):
                run.switch(pliant.after(5, pliant.bf16(), then=pliant.muloco()))
            train(ddp, optimizer, place.rank, range(2, 4))
            assert run.steps == 4

    pliant.run_world(2, body, timeout_s=60)


def test_muon_may_be_a_group_of_one_optimizer():
    class Mixed(torch.optim.SGD):
        """One optimizer with several algorithms, as some have it."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = Mixed([{"params": list(ddp.parameters()), "algorithm": "muon"}], lr=0.1)
        pliant.relax(ddp, optimizer, "muloco", timeout_s=20).close()

    pliant.run_world(1, body)


# - What a run says


def test_a_run_says_what_its_outer_optimizer_is_set_to():
    def body(place):
        said = []
        for what in (
            pliant.diloco(total_steps=800),
            pliant.pier(1280, outer_lr=0.5, last_momentum=0.2),
            pliant.delayed_nesterov(),
            pliant.local_sgd(),
        ):
            ddp = new_ddp(place)
            with pliant.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), what, timeout_s=20) as run:
                said.append(run.explain().partition("The outer optimizer ")[2])
        return said

    assert pliant.run_world(1, body)[0] == [
        "steps every 32 steps, 25 times in 800 steps, with lr 0.7; momentum 0.6.",
        "steps every 32 steps, 40 times in 1,280 steps, with lr 0.5; "
        "momentum 0.75, 0.75 at step 128, 0.2 at step 1280.",
        "steps every 4 rounds of 8 steps, with lr 0.7; momentum 0.9.",
        "",
    ]


def test_a_long_momentum_in_a_short_training_is_warned_of():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with pytest.warns(UserWarning, match=r"momentum of 0\.9 makes 25 steps in the 800 .* needs 50 or more"):
            pliant.relax(ddp, optimizer, pliant.diloco(total_steps=800, outer_momentum=0.9), timeout_s=20).close()
        for what in (pliant.diloco(total_steps=1600, outer_momentum=0.9), pliant.diloco()):
            pliant.relax(ddp, optimizer, what, timeout_s=20).close()  # long enough, or nobody knows

    pliant.run_world(1, body)


def test_defaults_follow_the_length_of_the_training_and_the_number_of_ranks():
    momenta = {steps: round(pliant.diloco(total_steps=steps).outer.momentum, 3) for steps in (250, 800, 1600, 3200)}
    assert momenta == {250: 0.0, 800: 0.6, 1600: 0.8, 3200: 0.9}
    rates = {n: round(pliant.streaming_diloco(num_ranks=n).outer.lr, 3) for n in (1, 4, 8, 16, 99)}
    assert rates == {1: 0.7, 4: 0.7, 8: 0.85, 16: 1.0, 99: 1.0}
    assert pliant.diloco(total_steps=800, outer_lr=0.3, outer_momentum=0.1).outer == Outer(
        lr=0.3, momentum=0.1, total_steps=800
    )
    assert pliant.diloco() == pliant.parse("LocalSteps(period=32, outer=Outer(lr=0.7, momentum=0.9))")
    with pytest.raises(
        ValueError, match="pier is about an outer momentum, for which 100 steps in periods of 32 are too"
    ):
        pliant.pier(100)
    with pytest.raises(ValueError, match=r"delays an outer momentum, for which 100 steps in periods of 32 are too few"):
        pliant.delayed_nesterov(total_steps=100)
    assert pliant.delayed_nesterov(every=1, total_steps=20).outer == Outer(lr=0.7, total_steps=20)
    for warmup_steps in (0, 3200):
        with pytest.raises(ValueError, match=f"warm-up that ends within the training, .* is {warmup_steps} of 3200;"):
            pliant.pier(3200, warmup_steps=warmup_steps)
