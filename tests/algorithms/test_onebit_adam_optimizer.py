"""OneBitAdam alone: all parameters turn at the same step, as the exchange does, and share one beta_1."""

import pytest
import torch

import pliant

WARMUP = 4
BETAS = (0.9, 0.5)


def parameter():
    return torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))


def step(optimizer, gradients):
    for each, gradient in gradients.items():
        each.grad = gradient
    optimizer.step()


def drawn(seed):
    return torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_had_no_gradient_in_some_steps_turns_with_the_others():
    """The exchange counts steps of the run, so that what comes behind its warm-up is a momentum for all."""
    always, seldom, late = parameter(), parameter(), parameter()
    optimizer = pliant.OneBitAdam([{"params": [always]}, {"params": [seldom, late]}], betas=BETAS, warmup_steps=WARMUP)
    for t in range(WARMUP):
        step(optimizer, {always: drawn(t), seldom: drawn(t) if t % 2 else None})
    variance = optimizer.state[seldom]["exp_avg_sq"] / (1 - BETAS[1] ** 2)
    for t in range(3):
        momentum = drawn(10 + t)
        step(optimizer, dict.fromkeys((always, seldom, late), momentum))
        for each in (always, seldom, late):
            assert torch.equal(optimizer.state[each]["exp_avg"], momentum)
        torch.testing.assert_close(optimizer.state[seldom]["exp_avg_sq"] / (1 - BETAS[1] ** WARMUP), variance)
        assert not optimizer.state[late]["exp_avg_sq"].any()
        assert late.isfinite().all()


def test_a_group_turns_no_step_before_another():
    one, other = parameter(), parameter()
    optimizer = pliant.OneBitAdam([{"params": [one]}, {"params": [other]}], betas=BETAS, warmup_steps=2)
    for t in range(4):
        step(optimizer, dict.fromkeys((one, other), drawn(t)))
        assert torch.equal(one, other)
        assert torch.equal(optimizer.state[other]["exp_avg"], drawn(t)) == (t >= 2)


def test_groups_have_one_beta_1():
    said = r"different beta_1, 0\.8 and 0\.9, but one momentum is exchanged"
    with pytest.raises(ValueError, match=said):
        pliant.OneBitAdam([{"params": [parameter()]}, {"params": [parameter()], "betas": (0.8, 0.9)}], warmup_steps=1)
    optimizer = pliant.OneBitAdam([parameter()], warmup_steps=1)
    with pytest.raises(ValueError, match=said):
        optimizer.add_param_group({"params": [parameter()], "betas": (0.8, 0.999)})
    optimizer.add_param_group({"params": [parameter()], "betas": (0.9, 0.99), "lr": 0.1})
    assert [group["betas"][1] for group in optimizer.param_groups] == [0.999, 0.99]
