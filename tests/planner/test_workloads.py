"""Shapes by formula are those of the published models."""

import pytest

from pliant.planner import WORKLOADS, shrunk


@pytest.mark.parametrize(
    ("name", "numel"),
    [
        ("vgg16", 138_357_544),
        ("resnet50", 25_557_032),
        ("bert", 109_482_240),
        ("gpt2", 124_439_808),
        ("vit", 86_567_656),
        ("lstm", 16_630_400),
        ("cnn", 409_082),
    ],
)
def test_parameters_are_as_many_as_published(name, numel):
    assert WORKLOADS[name]().numel == numel


@pytest.mark.parametrize("name", WORKLOADS)
def test_times_grow_and_backward_takes_twice_the_forward(name):
    workload = WORKLOADS[name]()
    times = [t.ready_s for t in workload.tensors]
    assert times == sorted(times)
    assert times[-1] == workload.backward_s == 2 * workload.forward_s > 0
    assert len({t.name for t in workload.tensors}) == len(workload.tensors)


@pytest.mark.parametrize("name", WORKLOADS)
def test_shrunk_models_fit_and_keep_their_tensors(name):
    whole = WORKLOADS[name]()
    small, share = shrunk(whole, 4e6)
    assert 3.8e6 < 4 * small.numel <= 4e6 or small is whole
    assert share == small.numel / whole.numel
    assert [t.name for t in small.tensors] == [t.name for t in whole.tensors]
    assert [t.ready_s for t in small.tensors] == [t.ready_s for t in whole.tensors]


def test_what_cannot_fit_is_refused():
    with pytest.raises(ValueError, match="even with one element each"):
        shrunk(WORKLOADS["resnet50"](), 100)
