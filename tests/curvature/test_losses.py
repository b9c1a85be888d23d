"""Losses are recognized by their gradients, and others are not taken for them."""

import pytest
import torch
from torch.nn import functional as f

from pliant.curvature import GaussNewton, LossObjective, recognize_loss

CE, BCE = "cross_entropy", "binary_cross_entropy"


def seen(loss, width, dtype=torch.float32, scale=1.0, rows=64):
    """What is recognized in a loss, given (rows, width) and a generator."""
    generator = torch.Generator().manual_seed(width)
    z = (scale * torch.randn(rows, width, generator=generator)).to(dtype).requires_grad_()
    loss(z.float(), generator).backward()
    return recognize_loss(z.detach(), z.grad)


def labels(z, g):
    return torch.randint(0, z.shape[1], z.shape[:1], generator=g)


def bits(z, g):
    return torch.randint(0, 2, z.shape, generator=g).float()


def numbers(z, g):
    return torch.randn(z.shape, generator=g)


LOSSES = {
    "ce": (CE, lambda z, g: f.cross_entropy(z, labels(z, g))),
    "sum": (CE, lambda z, g: 65536 * f.cross_entropy(z, labels(z, g), reduction="sum")),
    "ignored": (
        CE,
        lambda z, g: f.cross_entropy(z, labels(z, g).masked_fill(torch.arange(len(z)) % 3 == 0, -100)),
    ),
    "smoothed": (CE, lambda z, g: f.cross_entropy(z, labels(z, g), label_smoothing=0.1)),
    "bce": (BCE, lambda z, g: f.binary_cross_entropy_with_logits(z, bits(z, g))),
    "softplus": (BCE, lambda z, g: f.softplus(z).mean()),
    "mse": ("other", lambda z, g: f.mse_loss(z, numbers(z, g))),
    "huber": ("other", lambda z, g: f.smooth_l1_loss(z, numbers(z, g))),
    "l1": ("other", lambda z, g: f.l1_loss(z, numbers(z, g))),
    "margin": ("other", lambda z, g: f.multi_margin_loss(z, labels(z, g))),
    "weighted": ("other", lambda z, g: f.cross_entropy(z, labels(z, g), torch.arange(1.0, 1 + z.shape[1]))),
    "soft": ("other", lambda z, g: f.binary_cross_entropy_with_logits(z, torch.rand(z.shape, generator=g))),
    "penalty": ("other", lambda z, g: f.cross_entropy(z, labels(z, g)) + z.square().mean()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("width", [5, 300])
def test_a_loss_is_recognized(name, width, dtype):
    wanted, loss = LOSSES[name]
    assert seen(loss, width, dtype) in ((wanted, None) if dtype == torch.float16 else (wanted,))


@pytest.mark.parametrize("name", ["bce", "mse", "huber", "softplus"])
def test_so_is_one_of_a_single_output(name):
    wanted, loss = LOSSES[name]
    assert seen(loss, 1) == wanted


def test_what_could_be_several_is_none_of_them():
    assert seen(LOSSES["ce"][1], 5, rows=1) is None  # four numbers, two of which are unknown
    assert seen(LOSSES["bce"][1], 1, rows=3) is None
    assert seen(LOSSES["margin"][1], 300, torch.bfloat16, scale=0.01) is None  # all chances alike
    assert seen(lambda z, g: 0 * z.sum(), 5) is None
    assert seen(lambda z, g: torch.inf * z.sum(), 5) is None


def exact_diagonal(model, x, curvature):
    """sum over outputs of J' h J, from rows of the Jacobian, by hand; curvature is of (samples, outputs)."""
    z = model(x)
    h = curvature(z.detach())
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(z.numel()):
        row = torch.autograd.grad(z.flatten()[i], list(model.parameters()), retain_graph=True)
        for (name, _), g in zip(model.named_parameters(), row, strict=True):
            total[name] += h.flatten()[i] / z.numel() * g.square()
    return total


@pytest.mark.parametrize(
    ("name", "curvature"),
    [
        ("binary_cross_entropy", lambda z: z.sigmoid() * (1 - z.sigmoid())),
        ("squared_error", lambda z: 2 * torch.ones_like(z)),
    ],
)
def test_gauss_newton_of_them_is_exact_in_the_mean(name, curvature):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x, generator = torch.randn(6, 3), torch.Generator().manual_seed(1)
    wanted = exact_diagonal(model, x, curvature)
    task, num = LossObjective(model=model, args=(x,), loss_name=name), 1000
    found = {key: torch.zeros_like(value) for key, value in wanted.items()}
    for _ in range(num):
        for key, value in GaussNewton().diagonal(task, generator).items():
            found[key] += value / num
    for key, value in wanted.items():  # one draw deviates by about sqrt(2) times its mean; six deviations of 1000
        torch.testing.assert_close(found[key], value, rtol=6 * (2 / num) ** 0.5, atol=1e-6)
