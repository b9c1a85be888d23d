"""Means of moments that are used some steps late: what they leave, and what is refused."""

import pytest
import torch
from torch import nn

import pliant
from pliant.spec import LocalSteps, OptimizerState

STEPS = 14
SHAPE = (6, 5)


class Data(nn.Module):
    """Gradients are the data, whatever the weights are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE))

    def forward(self, x):
        return (self.weight * x).sum()


def gradient(rank, step):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 * rank + step))


ADAM = (lambda p: torch.optim.AdamW(p, betas=(0.8, 0.95)), {"exp_avg": 0.8, "exp_avg_sq": 0.95})
SGD = (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), {"momentum_buffer": 0.9})
MUON = (lambda p: torch.optim.Muon(p, lr=0.01, momentum=0.7), {"momentum_buffer": 0.7})


def added(key, g):
    """Return what a step of these optimizers adds to a moment, over 1 less its decay where it is a mean."""
    return g**2 if key == "exp_avg_sq" else g


def path_of(what, make, size):
    """Return per rank, for each step, the moments after it."""

    def body(place):
        model, seen = Data(), []
        optimizer = make(model.parameters())
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=20) as run:
            for step in range(STEPS):
                optimizer.zero_grad()
                run.model(gradient(place.rank, step)).backward()
                optimizer.step()
                kept = optimizer.state[model.weight]
                seen.append({key: kept[key].double() for key in kept if key != "step"})
        return seen

    return pliant.run_world(size, body, timeout_s=60)


def wanted(key, decay, optimizer, size, *, due, delay):
    """Return the same of a recursion in float64, in which a mean is there at once, and one that hides it until then."""
    scale = 1.0 if optimizer is SGD else 1 - decay
    at_once = [torch.zeros(SHAPE, dtype=torch.float64) for _ in range(size)]
    hidden, seen = [x.clone() for x in at_once], []
    for step in range(1, STEPS + 1):
        for rank in range(size):
            new = scale * added(key, gradient(rank, step - 1).double())
            at_once[rank], hidden[rank] = decay * at_once[rank] + new, decay * hidden[rank] + new
        if step - delay in due:
            hidden = [x.clone() for x in at_once]
        if step in due:
            mean = sum(at_once) / size
            at_once = [mean.clone() for _ in at_once]
        seen.append([x.clone() for x in hidden])
    return seen


@pytest.mark.parametrize("optimizer", [ADAM, SGD, MUON], ids=["AdamW", "SGD", "Muon"])
@pytest.mark.parametrize("delay", [1, 3, 4])
def test_a_late_mean_leaves_what_a_mean_at_once_would_have_left(optimizer, delay):
    """Both are due after 4, 8 and 12 steps; a mean is not seen until it is used."""
    make, decays = optimizer
    seconds = [key for key in decays if key == "exp_avg_sq"]
    firsts = [key for key in decays if key not in seconds]
    what = pliant.des_loc(4, first=1, second=1, first_states=firsts, second_states=seconds, delay_steps=delay)
    found = path_of(what, make, size=2)
    for key, decay in decays.items():
        oracle = wanted(key, decay, optimizer, 2, due={4, 8, 12}, delay=delay)
        for step in range(STEPS):
            for rank in range(2):
                torch.testing.assert_close(found[rank][step][key], oracle[step][rank], rtol=1e-5, atol=1e-6)


def test_a_late_second_moment_is_never_negative():
    """Rank 0 has large gradients until the mean, and all are 0 afterwards: corrections take back nearly all of it."""

    def body(place):
        model = Data()
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.95))
        what = LocalSteps(period=4, states=(OptimizerState(name="exp_avg_sq", period=4, delay_steps=4),))
        least = []
        with pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=20) as run:
            for step in range(STEPS):
                optimizer.zero_grad()
                large = 1e3 if place.rank == 0 and step < 2 else 0.0
                run.model(large * gradient(place.rank, step)).backward()
                optimizer.step()
                least.append(float(optimizer.state[model.weight]["exp_avg_sq"].min()))
        return min(least)

    assert min(pliant.run_world(3, body, timeout_s=60)) >= 0


def test_one_rank_is_the_plain_optimizer():
    make, _ = ADAM
    plain, late = (path_of(what, make, size=1)[0] for what in ("allreduce", pliant.des_loc(2, first=1, delay_steps=2)))
    assert all(torch.equal(a[key], b[key]) for a, b in zip(plain, late, strict=True) for key in a)


def test_it_says_how_late_means_are():
    make, _ = SGD

    def body(place):
        model = Data()
        what = pliant.des_loc(4, first_states=["momentum_buffer"], second_states=[], delay_steps=2)
        with pliant.relax(model, make(model.parameters()), what, group=place.process_group) as run:
            return run.explain()

    assert "momentum_buffer every 12 steps, used 2 steps later" in pliant.run_world(1, body, timeout_s=30)[0]


class Unknown(torch.optim.SGD):
    """Keeps a momentum, and does not say of what decay."""

    def __init__(self, params):
        super().__init__(params, lr=0.1, momentum=0.9)
        for group in self.param_groups:
            group["kept"] = group.pop("momentum")

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum_buffer"] = torch.zeros(p.shape)


def test_a_decay_that_nobody_says_is_refused():
    what = pliant.des_loc(4, first_states=["momentum_buffer"], second_states=[], delay_steps=2)

    def body(place):
        model = Data()
        with pytest.raises(ValueError, match="2 steps late, but the optimizer has no 'momentum' that says how"):
            pliant.relax(model, Unknown(model.parameters()), what, group=place.process_group, timeout_s=20)

    pliant.run_world(2, body, timeout_s=30)


def test_a_late_state_that_is_not_finite_is_not_sent():
    make, _ = SGD
    what = LocalSteps(period=8, states=(OptimizerState(name="momentum_buffer", period=2, delay_steps=1),))

    def body(place):
        model = Data()
        optimizer = make(model.parameters())
        run = pliant.relax(model, optimizer, what, group=place.process_group, timeout_s=20)

        def steps(numbers):
            for number in numbers:
                optimizer.zero_grad()
                run.model(gradient(place.rank, number)).backward()
                optimizer.step()

        steps([0])
        optimizer.state[model.weight]["momentum_buffer"][0, 0] = torch.nan
        told = f"after step 2 rank {place.rank} has a NaN or Inf in momentum_buffer of weight, and has not sent it"
        with pytest.raises(pliant.NonFiniteGradientError, match=told) as caught:
            steps([1, 2])
        run.__exit__(pliant.NonFiniteGradientError, caught.value, None)

    pliant.run_world(2, body, timeout_s=30)
