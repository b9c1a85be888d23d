"""Trace and eigenvalues against Hessians that are written out."""

import pytest
import torch
from curvature_models import explicit_hessian, seeded, tiny_task
from scipy.stats import t as student
from torch import nn

from pliant.curvature import LossObjective, hessian_trace, top_eigenvalues
from pliant.curvature.spectrum import _student_t


@pytest.mark.parametrize("by", ["product", "difference"])
def test_the_trace_lies_in_its_interval_as_often_as_it_says(by):
    task, _, _ = tiny_task()
    exact = float(explicit_hessian(task).trace())
    runs = 60 if by == "product" else 25
    found = [hessian_trace(task, seeded(seed), probes=10, confidence=0.9, by=by) for seed in range(runs)]
    inside = sum(f.low <= exact <= f.high for f in found)
    assert inside >= 0.9 * runs - 3 * (0.09 * runs) ** 0.5
    assert all(f.value == pytest.approx(sum(f.parameters.values())) for f in found)
    assert all(set(f.parameters) == set(task.parameters) for f in found)
    precise = hessian_trace(task, seeded(0), probes=400, by=by)
    assert precise.low <= exact <= precise.high
    assert precise.high - precise.low < 0.6 * abs(exact)


@pytest.mark.parametrize("by", ["product", "difference"])
@pytest.mark.parametrize("seed", range(3))
def test_eigenvalues_to_one_percent(by, seed):
    task, _, _ = tiny_task(seed)
    exact = torch.linalg.eigvalsh(explicit_hessian(task).double()).flip(0)[:4].tolist()
    tolerance = 1e-3 if by == "product" else 5e-3
    assert top_eigenvalues(task, seeded(seed), 4, by=by, tolerance=tolerance) == pytest.approx(exact, rel=0.01)


def test_multiple_eigenvalues_are_all_seen():
    model = nn.Linear(4, 1, bias=False)
    curves = torch.tensor([3.0, 3.0, 1.0, -5.0])
    task = LossObjective(model=model, args=(torch.eye(4),), loss=lambda z: (0.5 * curves * z[:, 0].square()).sum())
    assert top_eigenvalues(task, seeded(), 4) == pytest.approx([3, 3, 1, -5], rel=1e-3)
    assert hessian_trace(task, seeded(), probes=5).value == pytest.approx(2)


def test_refusals():
    task, _, _ = tiny_task()
    with pytest.raises(ValueError, match=r"3 probes.*at least 5"):
        hessian_trace(task, seeded(), probes=3)
    with pytest.raises(ValueError, match=r"0 eigenvalues.*1 to"):
        top_eigenvalues(task, seeded(), 0)
    with pytest.raises(RuntimeError, match="max_products=2"):
        top_eigenvalues(task, seeded(), 1, max_products=2)


@pytest.mark.parametrize("freedom", [4, 9, 29])
def test_quantiles(freedom):
    for confidence in (0.5, 0.9, 0.95):
        assert _student_t(confidence, freedom) == pytest.approx(student.ppf((1 + confidence) / 2, freedom), rel=0.01)
