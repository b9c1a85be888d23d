"""Work of predictions for many ranks, by the messages that they look at."""

import importlib
import tracemalloc
from math import log2
from pathlib import Path

import numpy as np
import pytest
from cases import cluster, even, plan_for

import pliant
from pliant.algorithms.by_name import plan_of_text
from pliant.netmodel import IDEAL, BucketBatch, DenseExchange, Links, PointToPoint, Together
from pliant.simulator import simulate, workload_named
from pliant.simulator.rounds import gossip_rounds
from pliant.simulator.simulate import context_for
from pliant.simulator.turns import num_turns
from pliant.spec import Graph

_ROOT = Path(__file__).parents[2]


def size_of(messages) -> int:
    """Return how many numbers a round has for each bucket."""
    if isinstance(messages, Together):
        return sum(map(size_of, messages.parts))
    if isinstance(messages, PointToPoint):
        return len(messages.source)
    assert isinstance(messages, DenseExchange)
    return messages.give.shape[1]


@pytest.mark.parametrize(
    "text", ["allreduce", "powersgd", "tasc", "gossip", "choco", "int4", "sparse_loco", "between_hosts(bytegrad)"]
)
def test_messages_to_look_at_grow_little_faster_than_ranks(monkeypatch, text):
    monkeypatch.syspath_prepend(str(_ROOT))
    large = importlib.import_module("benchmarks.published.ten_thousand")
    assert text in large.PLANS
    looked: list[int] = []
    load = Links.load
    monkeypatch.setattr(
        Links,
        "load",
        lambda links, each, *more, **named: looked.append(size_of(each)) or load(links, each, *more, **named),
    )
    work, found = workload_named("cnn", 0.01), {}
    for num_hosts in (16, 128):
        looked.clear()
        simulate(plan_of_text(text), work, large.cluster(num_hosts))
        found[8 * num_hosts] = sum(looked)
    assert found[1024] <= 120 * 1024 * log2(1024)
    assert found[1024] <= 8 * 2.5 * found[128]


@pytest.mark.parametrize("kind", ["complete", "matching", "round_robin"])
def test_who_may_ask_everybody_needs_no_table_of_all_pairs(kind):
    """Of 2,000 ranks that had 200 MB and more."""
    plan, work = plan_for(pliant.gossip(Graph(kind=kind), free=True)), even(1, 1000)
    simulate(plan, work, cluster(2))  # whatever is loaded once
    tracemalloc.start()
    try:
        simulate(plan, work, cluster(2000))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 50e6


@pytest.mark.parametrize("kind", ["complete", "matching", "ring", "grid", "one_peer", "hypercube", "exponential"])
@pytest.mark.parametrize("size", [2, 3, 9])
def test_in_pairs_each_rank_asks_all_its_neighbours_in_turn(kind, size):
    """So many exchanges are measured as differ for the rank that has most."""
    node, batch = pliant.gossip(Graph(kind=kind), free=True), BucketBatch(numel=np.ones(1), itemsize=np.full(1, 4.0))
    turns = num_turns(node, context_for(even(1, 1000), cluster(size), IDEAL, ()))
    asked = [set() for _ in range(size)]
    for turn in range(turns):
        question, answer = (each.messages for each in gossip_rounds(node, batch, size, turn))
        assert question.source.tolist() == answer.target.tolist() == list(range(size))
        assert question.target.tolist() == answer.source.tolist()
        for source, target in zip(question.source, question.target, strict=True):
            asked[source].add(int(target))
    assert asked == node.graph.neighbours(size)
    assert turns == max(map(len, asked))
