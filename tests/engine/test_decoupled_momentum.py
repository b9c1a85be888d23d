"""DeMo against its box written out in NumPy, what it does with an overflow, and what a switch leaves behind."""

import numpy as np
import pytest
import torch
from torch import nn

import pliant

NUMEL, BLOCK, KEPT, BETA = 150, 64, 4, 0.9
BLOCKS = -(-NUMEL // BLOCK)


def gradient(rank, step):
    return torch.randn(1, NUMEL, generator=torch.Generator().manual_seed(100 * step + rank))


def trained(place, algorithm, num_steps, lr=0.01, scale=lambda step: 1.0, **options):
    """Return the gradients that the optimizer got, and the weights; the local gradient is what goes in."""
    module = nn.Linear(NUMEL, 1, bias=False)
    nn.init.zeros_(module.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    got = []
    with pliant.relax(module, optimizer, algorithm, group=place.process_group, timeout_s=20, **options) as run:
        for step in range(num_steps):
            optimizer.zero_grad()
            run.model(gradient(place.rank, step) * scale(step)).sum().backward()
            got.append(module.weight.grad[0].clone())
            optimizer.step()
        saved = run.state_dict()
    return torch.stack(got).numpy(), module.weight.detach()[0].numpy(), saved


def dct(block):
    f, i = np.mgrid[:block, :block]
    rows = np.sqrt(2 / block) * np.cos(np.pi * (2 * i + 1) * f / (2 * block))
    rows[0] /= np.sqrt(2)
    return rows  # (block, block)


def largest(m):
    """Return what the KEPT largest coefficients of each block of m, (NUMEL,), say of it."""
    c = np.pad(m, (0, BLOCKS * BLOCK - NUMEL)).reshape(BLOCKS, BLOCK) @ dct(BLOCK).T
    least = np.sort(np.abs(c), axis=1)[:, -KEPT, None]
    return (np.where(np.abs(c) >= least, c, 0) @ dct(BLOCK)).reshape(-1)[:NUMEL]


def oracle(size, num_steps):
    """Yield the mean of what the ranks take out of their momenta."""
    momenta = np.zeros((size, NUMEL))
    for step in range(num_steps):
        taken = np.zeros((size, NUMEL))
        for rank in range(size):
            momenta[rank] = BETA * momenta[rank] + gradient(rank, step)[0].numpy()
            taken[rank] = largest(momenta[rank])
        momenta -= taken
        yield taken.mean(0)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("signed", [True, False])
def test_demo_equals_a_numpy_oracle(size, signed):
    algorithm = pliant.decoupled_momentum(ratio=KEPT / BLOCK, block=BLOCK, momentum=BETA, signed=signed)
    results = pliant.run_world(size, lambda place: trained(place, algorithm, 20)[:2], timeout_s=60)

    mean = np.stack(list(oracle(size, 20)))
    expected = np.sign(mean) if signed else mean
    clear = np.abs(mean) > 1e-5  # where float32 and float64 agree on a sign
    assert clear.mean() > 0.99
    for got, weights in results:
        np.testing.assert_allclose(got[clear], expected[clear], rtol=0, atol=1e-5)
        untouched = clear.all(0)
        np.testing.assert_allclose(weights[untouched], -0.01 * expected.sum(0)[untouched], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(got, results[0][0])
        np.testing.assert_array_equal(weights, results[0][1])


def test_an_overflow_on_one_rank_is_seen_by_all_and_enters_no_momentum():
    algorithm = pliant.decoupled_momentum(momentum=BETA)

    def body(place):
        huge = float("inf") if place.rank == 1 else 1.0
        without = trained(place, algorithm, 2)[2]
        got, _, with_overflow = trained(
            place, algorithm, 3, scale=lambda step: huge if step == 2 else 1.0, nonfinite="propagate"
        )
        return np.isfinite(got[:2]).all(), np.isfinite(got[2]).all(), momentum_of(without), momentum_of(with_overflow)

    for before, after, expected, found in pliant.run_world(3, body, timeout_s=60):
        assert before
        assert not after
        assert expected.any()
        assert torch.equal(found, expected)


def momentum_of(saved):
    """Return the one tensor of a run's state that is called momentum."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if str(key).endswith("momentum") and isinstance(value, torch.Tensor):
                    found.append(value)
                walk(value)

    walk(saved)
    (momentum,) = found
    return momentum.clone()


def test_a_switch_ends_the_momentum_and_owes_nothing():
    def body(place):
        module = nn.Linear(NUMEL, 1, bias=False)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        with pliant.relax(
            module, optimizer, pliant.decoupled_momentum(), group=place.process_group, timeout_s=20
        ) as run:
            for step in range(4):
                if step == 3:
                    run.switch("allreduce")
                optimizer.zero_grad()
                run.model(gradient(place.rank, step)).sum().backward()
        return module.weight.grad[0].clone()

    mean = torch.stack([gradient(rank, 3)[0] for rank in range(3)]).mean(0)
    for found in pliant.run_world(3, body):
        torch.testing.assert_close(found, mean)


def test_bytes_are_those_of_the_formula():
    algorithm = pliant.decoupled_momentum(ratio=KEPT / BLOCK, block=BLOCK)

    def body(place):
        module = nn.Linear(NUMEL, 1, bias=False)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        with pliant.relax(module, optimizer, algorithm, group=place.process_group, timeout_s=20) as run:
            run.model(gradient(place.rank, 0)).sum().backward()
            before = run.stats()["sent_bytes"]
            run.model(gradient(place.rank, 1)).sum().backward()
            return run.stats()["sent_bytes"] - before

    assert pliant.run_world(3, body) == [2 * 5 * KEPT * BLOCKS] * 3
