"""Budgets: greedy against the integer program, floors, and the bytes that a ratio pays for."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import linalg, optimize

from pliant.algorithms.executors.budgets import minimum_counts, select_blocks
from pliant.algorithms.executors.ratio_state import RATIO_STATE_NUMEL, RatioState, ramp_ratio
from pliant.layouts.blocks import divide_blocks, row_blocks, values_bytes
from pliant.spec import Host, Selection, Topology


def most_gain(gains, costs, room):
    """Return the most that one place of each menu gains together, by an integer program."""
    one = linalg.block_diag(*(np.ones(len(menu)) for menu in costs))
    total = np.concatenate(costs)[None]
    found = optimize.milp(
        -np.concatenate(gains),
        integrality=np.ones(one.shape[1]),
        bounds=optimize.Bounds(0, 1),
        constraints=[optimize.LinearConstraint(one, 1, 1), optimize.LinearConstraint(total, -np.inf, room)],
    )
    return -found.fun


def a_model(rng, num_layers):
    """Layers of blocks of different sizes and scales: scores (num_blocks,), elements, layer."""
    counts = rng.integers(20, 60, num_layers)
    layers = np.repeat(np.arange(num_layers), counts)
    numels = rng.integers(1, 5, num_layers)[layers] * 16
    scores = rng.lognormal(0, 1.5, len(layers)) * rng.lognormal(0, 2, num_layers)[layers] * numels
    return scores, numels, layers


@given(st.integers(0, 10**6), st.sampled_from([0.15, 0.3, 0.6]), st.sampled_from([0.0, 0.25]))
def test_greedy_is_within_two_percent_of_the_program(seed, share, floor):
    rng = np.random.default_rng(seed)
    scores, numels, layers = a_model(rng, 8)
    room = int(share * numels.sum())
    sizes = np.bincount(layers, numels).astype(int)
    segments = np.array([numels[layers == k][0] for k in range(8)])
    first = minimum_counts(floor, room, torch.tensor(sizes), torch.tensor(segments))
    chosen = select_blocks(
        torch.tensor(scores / numels), torch.tensor(numels), torch.tensor(layers), first, room
    ).numpy()
    assert numels[chosen].sum() <= room
    assert (np.bincount(layers[chosen], minlength=8) >= first.numpy()).all()
    ranked = [np.sort(scores[layers == k])[::-1] for k in range(8)]
    gains = [np.concatenate([[0], x.cumsum()])[int(least) :] for x, least in zip(ranked, first, strict=True)]
    costs = [
        (np.arange(len(x) + 1) * segment)[int(least) :]
        for x, segment, least in zip(ranked, segments, first, strict=True)
    ]
    assert scores[chosen].sum() >= 0.98 * most_gain(gains, costs, room)


def test_counts_of_before_are_kept_and_the_rest_is_filled_up():
    density = torch.tensor([9.0, 8.0, 7.0, 1.0, 2.0, 3.0])
    layers, numels = torch.tensor([0, 0, 0, 1, 1, 1]), torch.full((6,), 10)
    kept = select_blocks(density, numels, layers, torch.tensor([1, 2]), 35)
    assert kept.tolist() == [True, False, False, False, True, True]
    more = select_blocks(density, numels, layers, torch.tensor([1, 1]), 35)
    assert more.tolist() == [True, True, False, False, False, True]


SHAPES = st.lists(
    st.sampled_from([(), (0, 3), (5,), (300,), (64, 64), (16, 3, 3, 3), (1000, 37), (2, 5000)]), min_size=1, max_size=12
)


@given(
    SHAPES,
    st.sampled_from([1.0, 0.3, 0.03, 1 / 130]),
    st.sampled_from([0, 128, 512]),
    st.sampled_from(["global", "leader", "local"]),
    st.sampled_from([1, 8]),
    st.integers(2, 9),
    st.sampled_from([32, 16]),
)
def test_all_bytes_together_are_the_ratios_share(shapes, ratio, block, agreement, rescore, num_ranks, value_bits):
    """Unless that is less than one block, or what fills messages up, weighs."""
    try:
        sel = Selection(ratio=ratio, block=block, agreement=agreement, rescore=rescore, value_bits=value_bits)
    except ValueError:
        return  # scores alone would be too much
    parts = divide_blocks(shapes, sel, num_ranks)
    message = values_bytes(parts.message_numel(ratio), parts.bits(ratio)) + 2 * parts.told_numel(ratio)
    sent = 2 * (num_ranks - 1) / num_ranks * message
    whole = parts.is_whole(ratio)
    sent += (num_ranks - 1) * parts.payload_bytes(ratio)
    sent += (num_ranks - 1) / num_ranks * parts.mask_bytes * (agreement == "leader" and not whole)
    filled = 8 * num_ranks
    if not whole and parts.room(ratio) > parts.largest:
        assert sent <= ratio * 2 * (num_ranks - 1) / num_ranks * 4 * parts.numel + filled
    assert parts.numel == parts.numel_blocks + parts.numel_dense
    rows = [row_blocks(s, block) for s, dense in zip(shapes, parts.dense, strict=True) if not dense]
    assert sum(sum(r.numels) for r in rows if r) == parts.numel_blocks
    assert sum(len(r.numels) for r in rows if r) == parts.num_blocks


def test_scores_that_cost_more_than_values_are_refused():
    with pytest.raises(ValueError, match=r"block of 16 elements.*score alone"):
        Selection(ratio=1 / 130, block=16, agreement="global", rescore=1)
    with pytest.raises(ValueError, match="topology"):
        Selection(topology=Topology(hosts=(Host(name="a"),)))


def test_the_ratio_ramps_down_in_factors_of_four():
    assert [ramp_ratio(0.01, step, 9) for step in (0, 3, 6, 9)] == [0.25, 0.0625, 0.015625, 0.01]
    assert ramp_ratio(0.5, 0, 100) == 0.5


def course_after(squares, lrs=None, **settings):
    selection = Selection(relief=4, window=2, **settings)
    slots = {"x": torch.zeros(RATIO_STATE_NUMEL), "y": torch.zeros(RATIO_STATE_NUMEL)}
    factors = []
    for k, square in enumerate(squares):
        course = RatioState.read(slots)
        course.advance(selection, square, lrs[k] if lrs else 0.1)
        course.write(slots)
        factors.append(course.factor(selection))
    assert torch.equal(slots["x"], slots["y"])
    return factors


def test_there_is_relief_for_a_window_when_norms_change():
    assert course_after([1.0, 1, 1, 1, 9, 9, 9, 9, 9, 9]) == [1, 1, 1, 1, 1, 4, 4, 1, 1, 1]


def test_there_is_relief_when_the_rate_falls():
    assert course_after([1.0] * 6, [0.1, 0.1, 0.1, 0.01, 0.01, 0.01]) == [1, 1, 1, 4, 4, 1]
