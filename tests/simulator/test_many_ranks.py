"""Work of predictions for many ranks, by the messages that they look at."""

import importlib
from math import log2
from pathlib import Path

import pytest

from pliant.algorithms.by_name import plan_of_text
from pliant.netmodel import DenseExchange, Links, PointToPoint, Together
from pliant.simulator import simulate, workload_named

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
