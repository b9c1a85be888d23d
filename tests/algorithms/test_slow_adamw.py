"""AdamW with a slow momentum: its equations, and what of the momentum outlasts a period."""

import copy

import pytest
import torch

import pliant
from pliant.algorithms import algorithm_named

SHAPES = [(3, 4), (5,), ()]


def parameters(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)) for shape in SHAPES]


def step(optimizer, ps, seed):
    g = torch.Generator().manual_seed(seed)
    for p in ps:
        real = torch.view_as_real(p).shape if p.is_complex() else p.shape
        grad = torch.randn(real, generator=g, dtype=torch.float64)
        p.grad = torch.view_as_complex(grad) if p.is_complex() else grad.to(p.dtype)
    optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_with_the_whole_weight_on_the_momentum_it_is_adamw(weight_decay, dtype):
    settings = {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": weight_decay}
    ours, theirs = parameters(dtype), parameters(dtype)
    one = pliant.SlowAdamW(ours, slow_weight=1.0, **settings)
    other = torch.optim.AdamW(theirs, **settings)
    for seed in range(12):
        step(one, ours, seed)
        step(other, theirs, seed)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    for p, q in zip(ours, theirs, strict=True):
        assert one.state[p].keys() == other.state[q].keys()
        torch.testing.assert_close(one.state[p], other.state[q], rtol=1e-12, atol=1e-14)


def test_a_step_is_that_of_its_equations():
    """Element by element, in Python's floats; a group has settings of its own."""
    ps = parameters()
    optimizer = pliant.SlowAdamW(
        [{"params": ps[:2]}, {"params": ps[2:], "lr": 0.5, "slow_weight": 0.2}],
        lr=0.1,
        betas=(0.99, 0.9),
        slow_weight=0.6,
        eps=1e-3,
        weight_decay=0.05,
    )
    at = [p.detach().flatten().tolist() for p in ps]
    m, v = ([[0.0] * len(row) for row in at] for _ in range(2))
    for t in range(1, 6):
        step(optimizer, ps, t)
        for k, p in enumerate(ps):
            lr, w = (0.1, 0.6) if k < 2 else (0.5, 0.2)
            for i, g in enumerate(p.grad.flatten().tolist()):
                m[k][i] = 0.99 * m[k][i] + 0.01 * g
                v[k][i] = 0.9 * v[k][i] + 0.1 * g * g
                direction = (1 - w) * g + w * m[k][i] / (1 - 0.99**t)
                root = (v[k][i] / (1 - 0.9**t)) ** 0.5 + 1e-3
                at[k][i] = at[k][i] * (1 - lr * 0.05) - lr * direction / root
    for p, row in zip(ps, at, strict=True):
        torch.testing.assert_close(p.detach().flatten().tolist(), row, rtol=1e-12, atol=1e-14)


def test_parameters_without_a_gradient_stay_and_closures_are_called():
    ps = parameters()
    optimizer = pliant.SlowAdamW(ps)
    before = copy.deepcopy([p.detach() for p in ps])

    def closure():
        ps[1].grad = torch.ones(5, dtype=torch.float64)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert [torch.equal(p, q) for p, q in zip(ps, before, strict=True)] == [True, False, True]
    assert [p in optimizer.state for p in ps] == [False, True, False]


def test_it_goes_on_from_its_state_dict():
    ps, qs = parameters(), parameters()
    one, other = pliant.SlowAdamW(ps, lr=0.1), pliant.SlowAdamW(qs)
    step(one, ps, 0)
    for p, q in zip(ps, qs, strict=True):
        q.data.copy_(p.detach())
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in (1, 2):
        step(one, ps, seed)
        step(other, qs, seed)
    assert all(map(torch.equal, ps, qs))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": -1.0}, "must be at least 0, got -1.0"),
        ({"betas": (1.0, 0.9)}, r"got \(1.0, 0.9\) and 0.7"),
        ({"slow_weight": 1.5}, "slow_weight from 0 to 1, got .* and 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        pliant.SlowAdamW(parameters(), **settings)


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = pliant.SlowAdamW(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="needs dense gradients, but got a sparse one"):
        optimizer.step()


@pytest.mark.parametrize(("make", "left"), [(pliant.SlowAdamW, 0.9685), (torch.optim.AdamW, 0.0343)])
def test_a_slow_momentum_outlasts_a_period(make, left):
    """After 32 local steps of noise without a mean, what is left of the common momentum is beta^32 of it: MT-DAO."""

    def body(place):
        weight = torch.nn.Parameter(torch.zeros(400, dtype=torch.float64))
        optimizer = make([weight], lr=0.0)
        g = torch.Generator().manual_seed(place.rank)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        common = optimizer.state[weight]["exp_avg"].clone()
        for _ in range(pliant.mt_dao().period):
            noise = torch.randn(200, generator=g, dtype=torch.float64)
            weight.grad = torch.cat([noise, -noise])  # nothing of the common direction, exactly
            optimizer.step()
        return float(optimizer.state[weight]["exp_avg"] @ common / (common @ common))

    for share in pliant.run_world(2, body, timeout_s=30):
        assert share == pytest.approx(left, abs=1e-4)


def test_by_name_it_is_for_this_optimizer_alone():
    assert algorithm_named("mt_dao", pliant.SlowAdamW(parameters())) == pliant.mt_dao()
    with pytest.raises(ValueError, match=r"mt_dao needs pliant.SlowAdamW .* got AdamW"):
        algorithm_named("mt_dao", torch.optim.AdamW(parameters()))
