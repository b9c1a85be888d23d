"""Parts and their owners: every element has one owner, and loads are as even as rows and bandwidths allow."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pliant.layouts import joint_numel, place_parts
from pliant.spec import Placement
from pliant.spec.models import LAYERS

shapes = st.lists(st.lists(st.integers(0, 40), max_size=3).map(tuple), max_size=12)
placements = st.one_of(
    st.builds(Placement, cut=st.sampled_from(["auto", "whole", "rows", "flat"])),
    st.builds(Placement, cut=st.sampled_from(["rows", "flat"]), max_bytes=st.integers(0, 3000)),
    st.builds(Placement, cut=st.sampled_from(["whole", "flat"]), owners=st.lists(st.integers(0, 2)).map(tuple)),
    st.builds(Placement, bandwidths=st.lists(st.floats(0.1, 10), min_size=3, max_size=3).map(tuple)),
)


def placed(shapes, placement, size, itemsize=4):
    together = [joint_numel(shape, placement.cut) for shape in shapes]
    return place_parts([math.prod(s) for s in shapes], together, [itemsize] * len(shapes), placement, size)


def loads(parts, size):
    held = np.zeros(size)
    for own in parts:
        held += own.per_rank(own.numels, size)
    return held


@given(shapes, placements)
def test_each_element_has_one_owner_and_what_belongs_together_stays_so(shapes, placement):
    parts = placed(shapes, placement, 3)
    assert len(parts) == len(shapes)
    for shape, own, again in zip(shapes, parts, placed(shapes, placement, 3), strict=True):
        ranges = own.by_owner()
        assert ranges == again.by_owner()
        assert [start for _, (start, _) in ranges] == [0, *(stop for _, (_, stop) in ranges[:-1])]
        assert ranges[-1][1][1] == math.prod(shape)
        assert all(stop > start for _, (start, stop) in ranges) or ranges == [(own.owners[0], (0, 0))]
        assert all(0 <= owner < 3 for owner, _ in ranges)
        together = joint_numel(shape, placement.cut)
        assert all(stop % together == 0 for _, (_, stop) in ranges) or math.prod(shape) == 0
        if placement.max_bytes:
            assert own.numels.max() <= max(together, placement.max_bytes // 4)


@given(st.lists(st.integers(0, 10_000), max_size=40), st.lists(st.floats(0.1, 10), min_size=1, max_size=8))
def test_whole_parameters_are_near_what_bandwidths_allow(numels, bandwidths):
    parts = placed([(n,) for n in numels], Placement(cut="whole", bandwidths=tuple(bandwidths)), len(bandwidths))
    assert all(len(own.owners) == 1 for own in parts)
    times = loads(parts, len(bandwidths)) / bandwidths
    best = max(sum(numels) / sum(bandwidths), max(numels, default=0) / max(bandwidths))
    assert times.max() <= 2 * best + 1e-6  # Gonzalez, Ibarra, Sahni 1977: less than 2 on machines of any speeds
    if len(set(bandwidths)) == 1:
        assert times.max() - times.min() <= max(numels, default=0) / bandwidths[0] + 1e-6


MODELS = {
    "vgg16": [shape for layer in LAYERS["vgg16"]() for _, shape in layer.tensors],
    "one tensor": [(4_000_037,), (997,), (3,)],
    "one matrix": [(100_003, 96), (96,)],
}


@pytest.mark.parametrize("cut", ["auto", "rows"])
@pytest.mark.parametrize("name", MODELS)
def test_the_busiest_owner_has_hardly_more_than_the_mean(name, cut):
    for size in range(2, 65):
        if cut == "rows" and name == "one tensor":
            continue  # whose rows are its elements
        held = loads(placed(MODELS[name], Placement(cut=cut), size), size)
        assert held.max() <= 1.05 * held.mean(), size
    whole = loads(placed(MODELS[name], Placement(cut="whole"), 8), 8)
    assert whole.max() > 5 * whole.mean()


def test_loads_follow_bandwidths_also_beside_whole_parameters():
    held = loads(placed([(999_983,)], Placement(bandwidths=(10.0, 10.0, 1.0)), 3), 3)
    assert held == pytest.approx(999_983 * np.array([10, 10, 1]) / 21, abs=1)
    numels, together = [600, 300, 300], [600, 1, 1]  # the first must stay whole
    held = loads(place_parts(numels, together, [4] * 3, Placement(), 4), 4)
    assert sorted(held) == [200, 200, 200, 600]


def test_owners_and_sizes_of_parts_are_as_the_plan_says():
    rows = placed([(6, 5), (4,)], Placement(cut="rows", owners=(2, 0)), 3)
    assert [own.by_owner() for own in rows] == [[(2, (0, 15)), (0, (15, 30))], [(2, (0, 2)), (0, (2, 4))]]
    whole = placed([(7,), (8,), (9,)], Placement(cut="whole", owners=(1, 0)), 2)
    assert [own.by_owner() for own in whole] == [[(1, (0, 7))], [(0, (0, 8))], [(1, (0, 9))]]
    small = placed([(10,)], Placement(cut="flat", max_bytes=16, owners=(0, 1)), 2)
    assert small[0].by_owner() == [(0, (0, 4)), (1, (4, 8)), (0, (8, 10))]
    assert placed([(10,)], Placement(cut="flat", max_bytes=16), 2)[0].by_owner() == small[0].by_owner()


def test_a_placement_for_other_ranks_is_refused():
    with pytest.raises(ValueError, match="3 bandwidths, but there are 2 ranks; give one for each"):
        placed([(4,)], Placement(bandwidths=(1.0, 2.0, 3.0)), 2)
    with pytest.raises(ValueError, match="names rank 4 as an owner, but there are 2 ranks"):
        placed([(4,)], Placement(owners=(0, 4)), 2)
    with pytest.raises(ValueError, match="owners must be empty with bandwidths"):
        Placement(owners=(0,), bandwidths=(1.0,))
    with pytest.raises(ValueError, match="max_bytes must be 0 with cut='whole'"):
        Placement(cut="whole", max_bytes=4)
