"""Shapes by formula are those of the published models, and stay what the data set holds."""

from pathlib import Path

import pytest

from pliant.planner import WORKLOADS, scaled_down
from pliant_bench.dataset import load
from pliant_bench.dataset.records import ModelRow

DATASET = Path(__file__).parents[2] / "benchmarks" / "results" / "dataset_2core_2026-11-29"


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
    small, share = scaled_down(whole, 4e6)
    assert 3.8e6 < 4 * small.numel <= 4e6 or small is whole
    assert share == small.numel / whole.numel
    assert [t.name for t in small.tensors] == [t.name for t in whole.tensors]
    assert [t.ready_s for t in small.tensors] == [t.ready_s for t in whole.tensors]


def test_what_cannot_fit_is_refused():
    with pytest.raises(ValueError, match="even with one element each"):
        scaled_down(WORKLOADS["resnet50"](), 100)


@pytest.mark.parametrize(
    ("name", "whole", "small"),
    [
        ("vgg16", "187d8d89", "5fba2acb"),
        ("resnet50", "66cd0d28", "a4afe789"),
        ("bert", "f9db054c", "c1dc8b7b"),
        ("gpt2", "552aa57f", "f1970d02"),
        ("vit", "4d9af35e", "362cc464"),
        ("lstm", "d5291265", "c0e6cdc4"),
        ("ncf", "266701a7", "fad10fc5"),
        ("cnn", "3b77a459", "3b77a459"),
    ],
)
def test_models_keep_the_ids_that_trials_are_kept_under(name, whole, small):
    for workload, mark in ((WORKLOADS[name](), whole), (scaled_down(WORKLOADS[name](), 4e6)[0], small)):
        assert ModelRow(family=name, workload=workload).id == f"{name}-{mark}"


def test_models_of_the_published_trials_are_made_as_they_were():
    models = load(DATASET).models
    assert models
    for model_id, model in models.items():
        sizes = [scaled_down(WORKLOADS[model.family](), size) for size in (2e6, 4e6)]
        small = next(workload for workload, share in sizes if share == model.size_share)
        assert model_id == model.id == ModelRow(family=model.family, workload=small).id
