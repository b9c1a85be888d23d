"""ACCO: equal to its box, with the optimizer's state divided, and nothing lost at the end, in a save or in a skip."""

import copy

import pytest
import torch
from test_owner_step import OPTIMIZERS
from torch import nn

import pliant
from models import Net, batch, ended_equal, new_ddp, train, weights
from pliant.codecs import Sign

sizes = pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.extended)])
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def mean_gradient(module, size, step):
    """Return the mean over ranks of gradients in the place of each parameter, all at the same weights."""
    total = None
    for rank in range(size):
        x, y = batch(rank, step)
        there = copy.deepcopy(module)
        there.zero_grad()
        nn.functional.cross_entropy(there(x), y).backward()
        own = [p.grad / size for p in there.parameters()]
        total = own if total is None else [a + b for a, b in zip(total, own, strict=True)]
    return total


def stepped(module, make, state, gradients):
    """Return copies of a model and of its optimizer's state after a step."""
    then = copy.deepcopy(module)
    optimizer = make(then.parameters())
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    for parameter, gradient in zip(then.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    return then, optimizer.state_dict()


def oracle(make, size, num_steps):
    """Return what a model holds after each step, and at the end, by Algorithm 1."""
    torch.manual_seed(0)
    theta, state, seen = Net(), None, []
    estimate = theta
    coming = None
    for step in range(num_steps):
        if step % 2 == 0:
            g1 = mean_gradient(estimate, size, step)
            held = theta = theta if coming is None else coming
            estimate, _ = stepped(theta, make, state, g1)
        else:
            g2 = mean_gradient(theta, size, step)
            held = estimate
            coming, state = stepped(theta, make, state, [(a + b) / 2 for a, b in zip(g1, g2, strict=True)])
        seen.append(weights(held).clone())
    end = stepped(theta, make, state, g1)[0] if num_steps % 2 else coming
    return seen, weights(end)


@sizes
@optimizers
@pytest.mark.parametrize("num_steps", [5, 6])
def test_equals_its_box_step_by_step(size, optimizer, num_steps):
    seen, end = oracle(OPTIMIZERS[optimizer], size, num_steps)

    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS[optimizer](ddp.parameters())
        found = []
        with pliant.relax(ddp, made, "acco", timeout_s=20, agreement_every=1):
            for step in range(num_steps):
                train(ddp, made, place.rank, [step])
                found.append(weights(ddp).clone())
        return found, weights(ddp), made.state_dict()["state"]

    for found, last, state in pliant.run_world(size, body, timeout_s=60):
        for step, (there, wanted) in enumerate(zip(found, seen, strict=True)):
            torch.testing.assert_close(there, wanted, rtol=1e-4, atol=2e-5, msg=lambda m, k=step: f"step {k}: {m}")
        torch.testing.assert_close(last, end, rtol=1e-4, atol=2e-5)
        assert len(state) == 10


def test_the_optimizer_steps_once_for_two_steps_and_a_trial_leaves_its_state(monkeypatch):
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["adamw"](ddp.parameters())
        counts = []
        with pliant.relax(ddp, made, "acco", timeout_s=20):
            for step in range(6):
                train(ddp, made, place.rank, [step])
                held = made.state_dict()["state"].values()  # waits for what is in flight
                counts.append({int(state["step"]) for state in held if state})
        return counts

    for counts in pliant.run_world(2, body, timeout_s=60):
        assert counts == [set(), {1}, {1}, {2}, {2}, {3}]


def muon_and_adamw(ddp):
    """Return two optimizers, one of which needs whole matrices."""
    matrices = [p for p in ddp.parameters() if p.dim() == 2]
    others = [p for p in ddp.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-2, eps=1e-4)]


def train_all(ddp, optimizers, rank, steps):
    for step in steps:
        x, y = batch(rank, step)
        for each in optimizers:
            each.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        for each in optimizers:
            each.step()


@pytest.mark.parametrize("made_before", [3, 4])
def test_save_load_continue_in_the_middle_of_a_pair_and_between_two(made_before, tmp_path):
    """To the bit, with two optimizers; saving changes nothing."""

    def body(place):
        ends = []
        for saves in (False, True):
            ddp = new_ddp(place)
            optimizers = muon_and_adamw(ddp)
            with pliant.relax(ddp, optimizers, "acco", timeout_s=20) as run:
                train_all(ddp, optimizers, place.rank, range(made_before))
                if saves:
                    run.save(tmp_path / "run")
                train_all(ddp, optimizers, place.rank, range(made_before, 8))
            ends.append(weights(ddp))
        again = new_ddp(place, seed=5)
        others = muon_and_adamw(again)
        with pliant.load_run(tmp_path / "run", again, others, timeout_s=20):
            train_all(again, others, place.rank, range(made_before, 8))
        return [*ends, weights(again)]

    for plain, saved, loaded in pliant.run_world(3, body, timeout_s=60):
        assert torch.equal(plain, saved)
        assert torch.equal(plain, loaded)


def test_another_number_of_ranks_continues_with_all_that_was_gathered(tmp_path):
    """The first gradients of a pair are saved as those of three ranks, and two ranks step with the same mean."""

    def save(place):
        ddp = new_ddp(place)
        made = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with pliant.relax(ddp, made, "acco", timeout_s=20) as run:
            train(ddp, made, place.rank, [0])
            run.save(tmp_path / "run")
        return weights(ddp)  # which the gradients of one step have made

    def go_on(place):
        ddp = new_ddp(place, seed=7)
        made = torch.optim.SGD(ddp.parameters(), lr=0.1)
        pliant.load_run(tmp_path / "run", ddp, made, timeout_s=20, resize=True).close()
        return weights(ddp)

    ends = pliant.run_world(3, save, timeout_s=60)
    for found in pliant.run_world(2, go_on, timeout_s=60):
        torch.testing.assert_close(found, ends[0], rtol=1e-5, atol=1e-6)


def test_switching_to_other_plans_and_back_loses_no_step():
    """After three steps the third gradient is pending, and a switch steps with it: one state, equal on all ranks."""

    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, "acco", timeout_s=20) as run:
            train(ddp, made, place.rank, range(3))
            run.switch("allreduce")
            after = weights(ddp).clone()
            for k, what in enumerate(("acco", pliant.local_sgd(2), "sharded_optimizer", "acco")):
                train(ddp, made, place.rank, range(3 * k, 3 * k + 3))
                run.switch(what)
            train(ddp, made, place.rank, range(3))
        return after, weights(ddp)

    _, wanted = oracle(OPTIMIZERS["sgd"], 3, 3)
    results = pliant.run_world(3, body, timeout_s=60)
    for after, end in results:
        torch.testing.assert_close(after, wanted, rtol=1e-4, atol=2e-5)
        assert torch.equal(end, results[0][1])


@pytest.mark.parametrize("where", [{}, {"hosts": [[0, 1], [2]]}], ids=["flat", "by hosts"])
def test_bytes_are_those_of_an_all_reduce_a_step(where):
    what = pliant.between_hosts(pliant.acco()) if where else "acco"

    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, what, timeout_s=20, agreement_every=0, **where) as run:
            train(ddp, made, place.rank, range(4))
            run.state_dict()  # waits for the last exchange
            sent = run.stats()["sent_bytes"]
        return sent, weights(ddp)

    results = pliant.run_world(3, body, timeout_s=60)
    numel = results[0][1].numel()
    total = sum(sent for sent, _ in results)
    if not where:
        assert total == 4 * 2 * 2 * 4 * numel
    assert all(torch.equal(w, results[0][1]) for _, w in results)


def test_with_a_codec_it_learns_and_sends_less():
    def body(place):
        ddp = new_ddp(place)
        made = OPTIMIZERS["sgd"](ddp.parameters())
        with pliant.relax(ddp, made, pliant.parse("acco(qsgd)"), timeout_s=20) as run:
            losses = train(ddp, made, place.rank, [step % 2 for step in range(24)])
            return sum(losses[:4]), sum(losses[-4:]), run.stats()["sent_bytes"], weights(ddp).numel()

    results = pliant.run_world(2, body, timeout_s=60)
    assert sum(r[1] for r in results) < sum(r[0] for r in results)
    assert sum(r[2] for r in results) < 0.7 * 24 * 2 * 4 * results[0][3]


def test_a_gradient_that_is_not_finite_is_named_and_not_sent_and_training_goes_on():
    def body(place):
        module = Net()
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        with pliant.relax(module, made, "acco", group=place.process_group, timeout_s=20) as run:
            x, y = batch(place.rank, 0)
            nn.functional.cross_entropy(run.model(x), y).backward()
            module.hidden.weight.grad[0, 0] = torch.nan
            with pytest.raises(pliant.NonFiniteGradientError, match=f"rank {place.rank} .* hidden.weight"):
                made.step()
            train(run.model, made, place.rank, range(3))
        return weights(module)

    ended_equal(2, body)


@pytest.mark.parametrize("users", [(), (1,)])
def test_a_parameter_that_no_rank_has_used_is_left_alone(users):
    """As by a plain optimizer, whose weight decay does not reach it; where one rank has used it, it is stepped."""
    first = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])

    def body(place):
        layers = copy.deepcopy(first)
        made = torch.optim.AdamW(layers.parameters(), lr=0.1, weight_decay=0.5)
        with pliant.relax(layers, made, "acco", group=place.process_group, timeout_s=20):
            for _ in range(4):
                made.zero_grad()
                used = layers if place.rank in users else layers[:1]
                sum(layer(torch.ones(1, 3)).sum() for layer in used).backward()
                made.step()
        return weights(layers[1]), len(made.state_dict()["state"])

    results = pliant.run_world(2, body, timeout_s=60)
    for found, num_states in results:
        assert torch.equal(found, results[0][0])
        assert torch.equal(found, weights(first[1])) == (not users)
        assert num_states == (4 if users else 2)


def vectors(state):
    """Return all tensors in nested dicts."""
    return [state] if isinstance(state, torch.Tensor) else [x for each in state.values() for x in vectors(each)]


def test_a_state_that_is_loaded_into_the_optimizer_is_stepped_from():
    """Though owners are on their way to another one when it is loaded."""

    def body(place):
        ddp = new_ddp(place)
        made = torch.optim.SGD(ddp.parameters(), lr=1e-9, momentum=0.9)
        with pliant.relax(ddp, made, "acco", timeout_s=20):
            train(ddp, made, place.rank, range(4))
            loaded = copy.deepcopy(made.state_dict())
            for x in vectors(loaded["state"]):
                x.fill_(1000.0)
            train(ddp, made, place.rank, range(4, 6))  # for good, in flight
            made.load_state_dict(loaded)
            train(ddp, made, place.rank, range(6, 8))
            return min(float(x.min()) for x in vectors(made.state_dict()["state"]))

    assert min(pliant.run_world(3, body, timeout_s=60)) > 800


def test_a_rank_may_own_nothing():
    def body(place):
        ends = []
        for what in (pliant.acco(), pliant.acco(owners=(0,))):
            ddp = new_ddp(place)
            made = OPTIMIZERS["sgd"](ddp.parameters())
            with pliant.relax(ddp, made, what, timeout_s=20):
                train(ddp, made, place.rank, range(5))
            ends.append(weights(ddp))
        return ends

    for shared, owned in pliant.run_world(2, body, timeout_s=60):
        torch.testing.assert_close(owned, shared, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("what", "left"), [("acco", 0.8), ("bounded_staleness(0)", 0.64)])
def test_a_complex_parameter_may_come_behind_an_odd_number_of_elements(what, left):
    """Of the sum of squares each step takes a fifth of the weights."""
    first = nn.ParameterList([torch.randn(3), torch.randn(2, dtype=torch.complex64)])

    def body(place):
        held = copy.deepcopy(first)
        made = torch.optim.SGD(held.parameters(), lr=0.1)
        with pliant.relax(held, made, what, group=place.process_group, timeout_s=20):
            for _ in range(2):
                made.zero_grad()
                sum(p.abs().square().sum() for p in held).backward()
                made.step()
        torch.testing.assert_close([p.detach() for p in held], [left * p.detach() for p in first])

    pliant.run_world(1, body)


def test_a_biased_codec_is_refused():
    with pytest.raises(
        ValueError, match="invalid Acco: codec must be unbiased, since owners keep no residuals, got sign"
    ):
        pliant.acco(Sign())
