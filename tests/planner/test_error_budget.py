"""A budget of errors is divided as well as it can be, and never worse than one setting for all."""

import itertools
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from pliant.planner import (
    LOW_RANKS,
    MENUS,
    CodecErrors,
    Gene,
    Genome,
    Quality,
    Space,
    error_budget_seeds,
    lossy_codecs,
    solve_error_budget,
    solve_knapsack,
)
from pliant.planner.quality import MEASURED_STEPS_RATIO
from pliant.simulator import simulate_many
from pliant.spec import Host, LowRank, TensorSpec, Topology, Workload, from_json, to_json

CODECS = (*map(str, lossy_codecs()), *(LowRank(rank=rank).coding for rank in LOW_RANKS))
SLOW = Topology(hosts=tuple(Host(name=f"h{i}", send_bytes_per_s=12.5e6, receive_bytes_per_s=12.5e6) for i in range(4)))
EXACT16 = Gene("exact", {"bits": 16})


def step_s(workload, plans):
    return simulate_many(plans, workload, SLOW)


def measured(shares, errors, *, layers=("Linear",), rows=1000) -> Workload:
    """A workload of square matrices; errors: per tensor, of every lossy codec, the mildest to the strongest."""
    tensors = []
    for k, (share, worst) in enumerate(zip(shares, errors, strict=True)):
        strengths = {str(c): worst * strength(c) for c in CODECS}
        layer = layers[k % len(layers)]
        tensors += [
            TensorSpec(
                name=f"blocks[{k}].weight",
                shape=(rows, 1000),
                dtype="float32",
                layer=layer,
                ready_s=0.01 * k,
                gradient_share=share,
                gradient_error=strengths,
            ),
            TensorSpec(name=f"blocks[{k}].bias", shape=(1000,), dtype="float32", layer=layer, ready_s=0.01 * k),
        ]
    return Workload(name="made", tensors=tuple(tensors), forward_s=0.05, backward_s=0.1)


def strength(codec) -> float:
    settings = dict(re.findall(r"(\w+)=([^,)]+)", codec))
    if codec.startswith(("topk", "blocktopk", "randomk")):
        return 1 - float(settings.get("ratio", 0.01)) ** 0.25
    return 1 / float(settings["rank"]) if "rank" in settings else 2.0 ** -float(settings.get("bits", 6))


numbers = st.floats(0, 1, width=16)
tables = st.integers(1, 4).flatmap(
    lambda groups: st.integers(1, 4).flatmap(
        lambda settings: st.tuples(
            arrays(float, (groups, settings), elements=numbers), arrays(float, (groups, settings), elements=numbers)
        )
    )
)


@given(tables, st.just(0.0) | st.floats(1e-100, 3), st.sampled_from([1, 7, 100]))  # else the oracle overflows
def test_allot_is_the_best_of_all_divisions_in_levels(problem, budget, levels):
    errors, costs = problem
    least = errors.min(1)
    room = budget - float(least.sum())
    if room < 0:
        with pytest.raises(ValueError, match=r"a budget of .* the least that these settings reach is"):
            solve_knapsack(errors, costs, budget, levels)
        return
    above = errors - least[:, None]
    spent = np.array(
        [[0.0 if a == 0 else math.ceil(a * levels / room) if room else math.inf for a in row] for row in above]
    )
    groups = range(len(errors))
    feasible = [
        (sum(costs[g, s] for g, s in zip(groups, picked, strict=True)), sum(spent[g, s] for g, s in enumerate(picked)))
        for picked in itertools.product(range(errors.shape[1]), repeat=len(errors))
        if sum(spent[g, s] for g, s in enumerate(picked)) <= levels
    ]
    picked = solve_knapsack(errors, costs, budget, levels)
    cost = sum(costs[g, s] for g, s in enumerate(picked))
    assert cost == pytest.approx(min(feasible)[0], abs=1e-12)
    assert sum(errors[g, s] for g, s in enumerate(picked)) <= budget * (1 + 1e-12) + 1e-12


def test_of_equal_costs_the_one_with_less_error_is_taken():
    assert solve_knapsack(np.array([[0.3, 0.1, 0.2]]), np.array([[1.0, 1.0, 1.0]]), 0.5) == [1]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.05, 1)), min_size=1, max_size=4),
    st.floats(0, 1),
    st.sampled_from(sorted(MENUS)),
)
def test_never_slower_than_one_setting_for_all_and_never_above_the_budget(parts, budget, menu):
    shares = [share for share, _ in parts]
    work = measured([s / sum(shares) for s in shares], [worst for _, worst in parts], layers=("Linear", "Conv2d"))
    found = solve_error_budget(work, budget, MENUS[menu], step_s)
    assert found.error <= budget
    assert CodecErrors(work).of(found.genes.plan()) == found.error
    assert found.step_s == step_s(work, [found.genes.plan()])[0]
    for gene in MENUS[menu]:
        uniform = Genome(gene, bucket_bytes=25 << 20)
        if CodecErrors(work).of(uniform.plan()) <= budget:
            assert found.step_s <= found.uniform_s <= step_s(work, [uniform.plan()])[0]


def test_what_hardly_weighs_in_the_gradient_is_sent_in_fewer_elements():
    work = measured([0.96, 0.02, 0.02], [1.0, 1.0, 1.0], layers=("Linear", "Conv2d", "Conv2d"))
    found = solve_error_budget(work, 0.1, MENUS["topk"], step_s)
    assert not found.genes.base.lossy or dict(found.genes.layers)["Linear"] == EXACT16
    assert found.step_s < 0.7 * found.uniform_s
    assert found.uniform == Genome(EXACT16, bucket_bytes=25 << 20)


def test_buckets_are_told_apart_where_classes_are_not():
    work = measured([0.96, 0.02, 0.02, 0.0], [1.0] * 4, rows=8000)  # 32 MB each: a bucket each
    found = solve_error_budget(work, 0.1, MENUS["topk"], step_s)
    assert found.genes.names
    plan = found.genes.plan()
    assert plan.exchange_for("blocks[0].weight", "Linear", 8_000_000).payload_codec.name == "bf16"
    assert plan.exchange_for("blocks[3].weight", "Linear", 8_000_000).payload_codec.name == "topk"
    assert plan.exchange_for("blocks[3].bias", "Linear", 1000).payload_codec is None  # small ones are spared
    assert found.step_s < found.uniform_s


def test_what_cannot_be_is_said():
    work = measured([0.5, 0.5], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"a budget of 0\.01 .* the least that these settings reach is 0\.4377"):
        solve_error_budget(work, 0.01, [Gene("sparse", {"choice": "topk", "ratio": 0.1})], step_s)
    bare = replace(work, tensors=tuple(replace(t, gradient_error={}) for t in work.tensors))
    with pytest.raises(ValueError, match="errors that were measured, but the workload 'made' has none"):
        solve_error_budget(bare, 0.3, MENUS["topk"], step_s)
    with pytest.raises(ValueError, match="errors that were measured"):
        Space(bare, SLOW, Quality(budget=2), error_budget=0.3)
    one = replace(work, tensors=tuple(replace(t, gradient_error={"sign(block=1024)": 0.5}) for t in work.tensors))
    with pytest.raises(ValueError, match=r"none of 4 settings was measured .* knows sign;"):
        solve_error_budget(one, 0.3, [gene for gene in MENUS["topk"] if gene.lossy], step_s)


def test_seeds_divide_each_single_settings_error():
    work = measured([0.9, 0.05, 0.05], [0.9, 0.9, 0.9], layers=("Linear", "Conv2d", "Conv2d"))
    quality = Quality(budget=1.3, ratios=MEASURED_STEPS_RATIO)
    seeds = error_budget_seeds(work, quality, step_s)
    assert any(name.startswith("topk within") for name in seeds)
    space = Space(work, SLOW, quality)
    assert all(genes in space and len(set(genes.genes)) > 1 for genes in seeds.values())
    rng = random.Random(0)
    assert all(space.mutate(genes, rng) in space for genes in seeds.values())
    assert error_budget_seeds(work, Quality(), step_s) == {}  # what is exact has no error to divide
    bounded = error_budget_seeds(work, quality, step_s, budget=0.2)
    narrow = Space(work, SLOW, quality, error_budget=0.2)
    assert bounded
    assert all(genes in narrow for genes in bounded.values())
    assert Genome(Gene("sparse", {"choice": "topk", "ratio": 0.01}), bucket_bytes=25 << 20) not in narrow


def test_errors_of_plans():
    work = measured([0.75, 0.25], [1.0, 0.5])
    errors = CodecErrors(work)
    assert errors.measured == frozenset(CODECS)
    topk = Gene("sparse", {"choice": "topk", "ratio": 0.01})
    whole = errors.of(Genome(topk).plan())
    assert whole == pytest.approx(work.gradient_error("topk"))
    assert errors.of(Genome(EXACT16, names=(("blocks[[]0].weight", topk),)).plan()) == pytest.approx(
        0.75 * (1 - 0.01**0.25)
    )
    assert errors.of(Genome(Gene("local", {"every": 8})).plan()) is None


def test_genes_with_names_are_read_again_and_older_ones_still():
    named = Genome(EXACT16, names=(("0.weight", Gene("quantized", {"bits": 4})),))
    assert from_json(Genome, to_json(named)) == named
    older = '{"pliant":"Genes","format":1,"base":{"family":"exact","settings":{"bits":16}},"layers":[],"at_end":false}'
    assert from_json(Genome, older) == Genome(EXACT16)
    assert Genome(EXACT16).plan().hash == "0c8f3150dab41df5"
