"""Graphs for gossip: doubly stochastic, pairs that agree, and how fast they mix."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pliant.spec import Graph, from_json, to_json

KINDS = ("ring", "complete", "exponential", "grid", "one_peer", "hypercube", "round_robin", "matching")
PAIRED = ("hypercube", "round_robin", "matching")


def matrix(graph, step, size):
    w = np.zeros((size, size))
    for i, row in enumerate(graph.mixing(step, size)):
        for j, weight in row.items():
            w[i, j] = weight
    return w


@given(kind=st.sampled_from(KINDS), size=st.integers(1, 17), step=st.integers(0, 40))
def test_rows_and_columns_sum_to_one_and_the_period_is_one(kind, size, step):
    graph = Graph(kind=kind, seed=3)
    w = matrix(graph, step, size)
    assert (w >= 0).all()
    np.testing.assert_allclose(w.sum(0), 1)
    np.testing.assert_allclose(w.sum(1), 1)
    if period := graph.period(size):
        np.testing.assert_array_equal(w, matrix(graph, step + period, size))
    assert (np.diag(w) > 0).all()


@given(kind=st.sampled_from(PAIRED), size=st.integers(1, 17), step=st.integers(0, 40))
def test_partners_are_each_other_s(kind, size, step):
    rows = Graph(kind=kind).mixing(step, size)
    partner = [next((j for j in row if j != i), i) for i, row in enumerate(rows)]
    assert all(partner[partner[i]] == i for i in range(size))
    if kind != "hypercube":
        assert sum(partner[i] == i for i in range(size)) == size % 2  # at most one is left over


@given(size=st.integers(2, 17))
def test_a_round_robin_meets_every_pair_once(size):
    graph = Graph(kind="round_robin")
    met = [
        (i, j)
        for step in range(graph.period(size))
        for i, row in enumerate(graph.mixing(step, size))
        for j in row
        if i < j
    ]
    assert sorted(met) == [(i, j) for i in range(size) for j in range(i + 1, size)]


@pytest.mark.parametrize("kind", ["one_peer", "hypercube"])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_powers_of_two_are_exact_after_one_period(kind, size):
    graph, product = Graph(kind=kind), np.eye(size)
    for step in range(graph.period(size)):
        product = matrix(graph, step, size) @ product
    np.testing.assert_allclose(product, 1 / size)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_the_ring_mixes_as_slowly_as_known(size):
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(matrix(Graph(), 0, size))))
    assert eigenvalues[-2] == pytest.approx((1 + 2 * math.cos(2 * math.pi / size)) / 3)


def test_matchings_differ_from_step_to_step_and_by_seed_but_not_by_rank():
    of = {
        (seed, step): tuple(map(str, Graph(kind="matching", seed=seed).mixing(step, 8)))
        for seed in (0, 1)
        for step in (0, 1)
    }
    assert len(set(of.values())) == 4
    assert Graph(kind="matching").mixing(5, 8) == Graph(kind="matching").mixing(5, 8)


def test_a_matrix_is_taken_as_given_and_survives_json():
    graph = Graph(kind="matrix", rows=((0.5, 0.5, 0.0), (0.5, 0.25, 0.25), (0.0, 0.25, 0.75)))
    assert graph.mixing(7, 3)[0] == {0: 0.5, 1: 0.5}
    assert from_json(Graph, to_json(graph)) == graph
    with pytest.raises(ValueError, match="for 3 ranks, but there are 4"):
        graph.mixing(0, 4)


@pytest.mark.parametrize(
    "rows", [((1.0, 0.0), (1.0, 0.0)), ((0.5, 0.5), (0.6, 0.4)), ((1.5, -0.5), (-0.5, 1.5)), ((1.0, 0.0),)]
)
def test_a_matrix_that_would_move_the_mean_is_refused(rows):
    with pytest.raises(ValueError, match="the mean would drift"):
        Graph(kind="matrix", rows=rows)


def test_rows_belong_to_a_matrix_alone():
    with pytest.raises(ValueError, match="rows are for 'matrix' alone"):
        Graph(kind="ring", rows=((1.0,),))
    with pytest.raises(ValueError, match="'matrix' has 0 rows"):
        Graph(kind="matrix")
