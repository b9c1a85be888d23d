"""Estimates of the diagonal against Hessians that are written out, and models that must come out as they were."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from curvature_models import Attention, Normed, Recurrent, Tiny, explicit_hessian, flat, made, seeded, tiny_task
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.functional import cross_entropy

from pliant.curvature import Fisher, GaussNewton, Hutchinson, LossObjective, find_logits, hessian


def gauss_newton_diagonal(task):
    """diag of (1/B) sum_i J_i' (diag(p_i) - p_i p_i') J_i, written out."""
    names, x = list(task.parameters), task.args[0]
    values = {n: p.detach() for n, p in task.parameters.items()}
    rows = jacrev(lambda w: functional_call(task.model, w, (x,), tie_weights=True))(values)  # name -> (B, C, *shape)
    J = torch.cat([rows[n].flatten(2) for n in names], 2)  # (B, C, numel)
    p = task.model(x).detach().softmax(-1)
    H = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]  # (B, C, C)
    return torch.einsum("bcn,bcd,bdn->n", J, H, J) / x.shape[0]


def test_gauss_newton_is_exact_in_the_mean():
    task, _, _ = tiny_task()
    exact, g = gauss_newton_diagonal(task), seeded(1)
    mean = torch.stack([flat(GaussNewton().diagonal(task, g)) for _ in range(1000)]).mean(0)
    # One draw of a weight has a relative deviation of about sqrt(2), so 1000 have 4.5 %.
    assert torch.allclose(mean, exact, rtol=0.22, atol=1e-6)
    assert float((mean.sum() / exact.sum() - 1).abs()) < 0.05


def test_hutchinson_is_exact_in_the_mean():
    task, _, _ = tiny_task()
    exact = explicit_hessian(task).diagonal()
    found = flat(Hutchinson(probes=1000).diagonal(task, seeded(2)))
    off = explicit_hessian(task) - exact.diag()
    deviation = off.square().sum(1).sqrt() / 1000**0.5  # of a mean over probes, exactly
    assert ((found - exact).abs() <= 5 * deviation + 1e-6).all()


def test_without_a_loss_hutchinson_feels_gauss_newton_in_the_mean():
    task, _, _ = tiny_task()
    bare, g = LossObjective(model=task.model, args=task.args), seeded(3)
    found = torch.stack([flat(Hutchinson().diagonal(bare, g)) for _ in range(600)]).mean(0)
    exact = gauss_newton_diagonal(task)
    assert float((found.sum() / exact.sum() - 1).abs()) < 0.1


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_differences_equal_products(drop):
    model = made(Normed, drop=drop)
    x, y = torch.randn(6, 1, 4, 4), torch.randint(0, 4, (6,))
    task = LossObjective(model=model, args=(x,), loss=lambda z: cross_entropy(z, y))
    found = {}
    for by in ("product", "difference"):
        torch.manual_seed(7)  # the same masks
        found[by] = flat(Hutchinson(probes=3, by=by).diagonal(task, seeded(4)))
    scale = found["product"].abs().max()
    assert scale > 0
    assert (found["product"] - found["difference"]).abs().max() < 0.01 * scale


def test_fisher_is_the_mean_of_squares_and_not_the_square_of_the_mean():
    task, x, y = tiny_task(num=6)
    singles = LossObjective(model=task.model, args=(x,), loss=lambda z: cross_entropy(z, y, reduction="none"))
    squares, total = [], []
    for k in range(6):
        one = LossObjective(model=task.model, args=(x[k : k + 1],))
        g = flat(dict(zip(one.parameters, one.gradients(cross_entropy(one.forward(), y[k : k + 1])), strict=True)))
        squares.append(g.square())
        total.append(g)
    found = flat(Fisher().diagonal(singles, seeded()))
    assert torch.allclose(found, torch.stack(squares).mean(0), rtol=1e-4, atol=1e-8)
    assert not torch.allclose(found, torch.stack(total).mean(0).square(), rtol=0.5)
    with pytest.raises(ValueError, match=r"loss of each sample.*reduction='none'"):
        Fisher().diagonal(task, seeded())


def test_attention_without_double_backward_works_and_says_so_once():
    torch.manual_seed(0)
    model, x, y = Attention(), torch.randn(2, 6, 8), torch.randint(0, 5, (12,))
    task = LossObjective(model=model, args=(x,), loss=lambda z: cross_entropy(z.flatten(0, 1), y))
    with pytest.warns(UserWarning, match="Attention has a kernel without double backward.*differences"):
        first = Hutchinson().diagonal(task, seeded(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Hutchinson().diagonal(task, seeded(1))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            exact = Hutchinson(by="product").diagonal(task, seeded(1))
    assert torch.equal(flat(first), flat(again))
    assert (flat(first) - flat(exact)).abs().max() < 0.01 * flat(exact).abs().max()
    with pytest.raises(RuntimeError, match="not implemented"):
        Hutchinson(by="product").diagonal(task, seeded(1))
    assert flat(GaussNewton().diagonal(task, seeded())).sum() > 0


def test_a_recurrent_model_and_a_mapping():
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(3, 5, 3)
    task = LossObjective(model=model, args=(x,))
    for estimator in (GaussNewton(), Hutchinson(), Hutchinson(by="difference"), Fisher()):
        found = estimator.diagonal(task, seeded(5))
        assert {n: x.shape for n, x in found.items()} == {n: p.shape for n, p in model.named_parameters()}
        assert flat(found).isfinite().all()
        assert flat(found).any()
    one, other = (flat(Hutchinson(by=by).diagonal(task, seeded(5))) for by in ("product", "difference"))
    assert (one - other).abs().max() < 0.01 * one.abs().max()


ESTIMATORS = [GaussNewton(), Hutchinson(by="product"), Hutchinson(by="difference"), Fisher()]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_the_model_comes_out_as_it_was(estimator):
    model = made(Normed)
    model.conv.bias.requires_grad_(False)
    x, y = torch.randn(6, 1, 4, 4), torch.randint(0, 4, (6,))
    cross_entropy(model(x), y).backward()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    buffers = {n: id(b) for n, b in model.named_buffers()}
    state = torch.get_rng_state()
    model.head.weight.register_post_accumulate_grad_hook(lambda _: pytest.fail("a gradient was accumulated"))
    task = LossObjective(model=model, args=(x,), loss=lambda z: cross_entropy(z, y, reduction="none"))
    with torch.no_grad():  # as in the hook of an optimizer
        found = estimator.diagonal(task, seeded(1))
    assert set(found) == {"conv.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert all(t.dtype == torch.float32 and not t.requires_grad for t in found.values())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert {n: id(b) for n, b in model.named_buffers()} == buffers
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not model.conv.bias.requires_grad
    for name, p in model.named_parameters():
        assert (p.grad is None) == (grads[name] is None)
        assert p.grad is None or torch.equal(p.grad, grads[name])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_it_comes_out_as_it_was_from_an_error(estimator):
    model = made(Normed)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    calls = []

    def loss(z):
        calls.append(z)
        if len(calls) == (2 if estimator == Hutchinson(by="difference") else 1):
            raise KeyError("mine")
        return cross_entropy(z, torch.zeros(6, dtype=torch.int64), reduction="none")

    reads = {"logits": loss} if estimator == GaussNewton() else {"loss": loss}
    with pytest.raises(KeyError, match="mine"):
        estimator.diagonal(LossObjective(model=model, args=(torch.randn(6, 1, 4, 4),), **reads), seeded())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_under_autocast_it_is_about_the_same(estimator):
    task, _, y = tiny_task(num=32)
    task = LossObjective(model=task.model, args=task.args, loss=lambda z: cross_entropy(z.float(), y, reduction="none"))
    precise = flat(estimator.diagonal(task, seeded(1)))
    with torch.autocast("cpu", torch.bfloat16):
        half = flat(estimator.diagonal(task, seeded(1)))
        again = flat(estimator.diagonal(task, seeded(1)))  # nothing is left in autocast's cache
    assert torch.equal(half, again)
    if estimator == Hutchinson(by="difference"):
        assert torch.equal(half, precise)  # since it would be rounding
    else:
        assert float((half - precise).abs().max() / precise.abs().max()) < 0.3
        assert not torch.equal(half, precise)


def test_differences_refuse_coarse_weights():
    task, _, _ = tiny_task()
    task = LossObjective(model=task.model.bfloat16(), args=(task.args[0].bfloat16(),))
    with pytest.raises(ValueError, match=r"float32.*bfloat16.*GaussNewton"):
        Hutchinson(by="difference").diagonal(task, seeded())
    assert flat(GaussNewton().diagonal(task, seeded())).isfinite().all()


def test_sparse_gradients_and_linear_losses():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Linear(4, 3))
    task = LossObjective(model=model, args=(torch.tensor([0, 3, 3]),))
    found = GaussNewton().diagonal(task, seeded())
    assert found["0.weight"].layout == torch.strided
    assert not found["0.weight"][[1, 2, 4, 5]].any()
    assert Fisher().diagonal(task, seeded())["0.weight"][3].any()
    linear = LossObjective(model=nn.Linear(3, 1), args=(torch.randn(4, 3),), loss=lambda z: z.mean())
    assert not flat(Hutchinson(by="product").diagonal(linear, seeded())).any()


def test_where_logits_are_found():
    z = torch.randn(3, 4)
    for output in (z, SimpleNamespace(logits=z), {"logits": z}, (z, None), [z]):
        assert find_logits(output) is z
    for output in (None, {"loss": z}, z.long(), (), torch.tensor(1.0), "text"):
        with pytest.raises(ValueError, match=r"no logits .* were found; say where .*logits=lambda"):
            find_logits(output)
    with pytest.raises(ValueError, match=r"\(4, 1\).*loss_name='binary_cross_entropy'"):
        GaussNewton().diagonal(LossObjective(model=nn.Linear(3, 1), args=(torch.randn(4, 3),)), seeded())
    with pytest.raises(ValueError, match="0 probes"):
        Hutchinson(probes=0)


def test_a_product_is_that_of_the_hessian():
    task, _, _ = tiny_task()
    H, v = explicit_hessian(task), torch.randn(sum(p.numel() for p in task.parameters.values()))
    pieces = [x.view(p.shape) for x, p in zip(_split(v, task), task.parameters.values(), strict=True)]
    for by, error in (("product", 1e-4), ("difference", 1e-2)):
        with hessian(task, seeded(), by) as product:
            found = torch.cat([x.flatten() for x in product(pieces)])
            assert not torch.cat([x.flatten() for x in product([0 * x for x in pieces])]).any()
        assert (found - H @ v).norm() < error * (H @ v).norm()
    assert isinstance(task.model, Tiny)


def _split(v, task):
    return v.split([p.numel() for p in task.parameters.values()])
