"""Dion alone: its box, the polar factor that it comes to, and what it refuses."""

import copy

import numpy as np
import pytest
import torch

import pliant
from pliant.collectives.lowrank import first_factor

ROWS, COLUMNS = 9, 6


def matrix(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    return torch.nn.Parameter(torch.randn(ROWS, COLUMNS, generator=g, dtype=torch.float64).to(dtype))


def step(optimizer, w, seed):
    w.grad = torch.randn(w.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(w.dtype)
    optimizer.step()


@pytest.mark.parametrize("rank", [1, 3, 50])
@pytest.mark.parametrize(("adjust", "scale"), [(None, (9 / 6) ** 0.5), ("match_rms_adamw", None)])
def test_steps_are_those_of_the_box(rank, adjust, scale):
    w, r = matrix(), min(rank, COLUMNS)
    optimizer = pliant.Dion([w], lr=0.1, rank=rank, momentum=0.8, weight_decay=0.3, adjust_lr_fn=adjust)
    scale = 0.2 * (ROWS * COLUMNS / r) ** 0.5 if scale is None else scale
    x, m, q = w.detach().numpy().copy(), np.zeros((ROWS, COLUMNS)), first_factor(r, COLUMNS).double().numpy().T
    for seed in range(6):
        step(optimizer, w, seed)
        m += w.grad.numpy()
        p, _ = np.linalg.qr(m @ q)
        right = m.T @ p
        m -= (1 - 0.8) * p @ right.T
        q = right / np.linalg.norm(right, axis=0)
        x = (1 - 0.1 * 0.3) * x - 0.1 * scale * p @ q.T
        np.testing.assert_allclose(w.detach().numpy(), x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_of_full_rank_it_comes_to_the_polar_factor(momentum):
    """Columns of Q become the right singular vectors of a momentum that keeps its direction."""
    w, g = matrix(), torch.Generator().manual_seed(1)
    u, v = (torch.linalg.qr(torch.randn(n, COLUMNS, generator=g, dtype=torch.float64))[0] for n in (ROWS, COLUMNS))
    w.grad = u * 0.5 ** torch.arange(COLUMNS) @ v.T
    optimizer = pliant.Dion([w], lr=1.0, rank=COLUMNS, momentum=momentum, weight_decay=0.0)
    for _ in range(60):
        before = w.detach().clone()
        optimizer.step()
    torch.testing.assert_close((before - w.detach()) / (9 / 6) ** 0.5, u @ v.T, rtol=0, atol=1e-6)


def test_a_direction_that_a_gradient_lacks_comes_when_there_is_one():
    """After gradients of rank 1, and none at all, steps are of full rank as soon as the gradient is."""
    w = matrix()
    optimizer = pliant.Dion([w], lr=1.0, rank=3, momentum=0.0, weight_decay=0.0)
    for grad in (torch.zeros(ROWS, COLUMNS), torch.ones(ROWS, COLUMNS), *[matrix().detach()] * 20):
        w.grad, before = grad.double(), w.detach().clone()
        optimizer.step()
        assert w.isfinite().all()
    values = torch.linalg.svdvals(before - w.detach())
    assert values[2] > 0.5 * values[0]
    assert values[3] < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_gradient_of_zeros_leaves_the_directions_of_the_next_as_they_were(momentum):
    """As of the layers in front of one whose weights begin as zeros."""
    w, x = matrix(), matrix()
    one, other = (pliant.Dion([each], rank=2, momentum=momentum, weight_decay=0.0) for each in (w, x))
    w.grad = torch.zeros_like(w)
    one.step()
    assert torch.equal(w, matrix())
    for seed in (1, 2):
        step(one, w, seed)
        step(other, x, seed)
        assert torch.equal(w, x)


def test_it_goes_on_from_its_state_dict_to_the_bit_also_in_16_bits():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):  # torch rounds what it loads to the weights' type
        w, x = matrix(dtype), matrix(dtype)
        one, other = pliant.Dion([w], lr=1.0, rank=2), pliant.Dion([x])
        step(one, w, 0)
        x.data.copy_(w.detach())
        other.load_state_dict(copy.deepcopy(one.state_dict()))
        for seed in (1, 2):
            step(one, w, seed)
            step(other, x, seed)
        assert torch.equal(w, x)


def test_matrices_without_a_gradient_stay_and_closures_are_called():
    w, x = matrix(), matrix()
    optimizer = pliant.Dion([w, x])

    def closure():
        x.grad = torch.ones_like(x)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert torch.equal(w, matrix())
    assert not torch.equal(x, matrix())


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_matrices_of_no_element_or_one(shape, adjust):
    w = torch.nn.Parameter(torch.zeros(shape))
    optimizer = pliant.Dion([w], lr=1.0, weight_decay=0.0, adjust_lr_fn=adjust)
    w.grad = torch.full(shape, 2.0)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full(shape, -1.0 if adjust is None else -0.2))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": -1.0}, "must be at least 0, got -1.0"),
        ({"rank": 0}, "rank must be at least 1, .* got 0 and 0.95"),
        ({"momentum": 1.0}, "momentum at least 0 and below 1, got 64 and 1.0"),
        ({"adjust_lr_fn": "original"}, "must be None or 'match_rms_adamw', got 'original'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        pliant.Dion([matrix()], **settings)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
def test_what_is_no_matrix_is_refused(shape):
    odd = torch.nn.Parameter(torch.zeros(shape))
    said = r"steps whole matrices .* \[Dion\(matrices\), AdamW\(others\)\]"
    with pytest.raises(ValueError, match=said):
        pliant.Dion([odd])
    optimizer = pliant.Dion([matrix()])
    with pytest.raises(ValueError, match=said):
        optimizer.add_param_group({"params": odd})
    with pytest.raises(ValueError, match="momentum at least 0 and below 1, got 64 and 2"):
        optimizer.add_param_group({"params": [matrix()], "momentum": 2})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [matrix()], "rank": 2})
    assert [group["rank"] for group in optimizer.param_groups] == [64, 2]


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = pliant.Dion(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="needs dense gradients, but got a sparse one"):
        optimizer.step()
