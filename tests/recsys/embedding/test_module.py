from functools import cache

import pytest
import torch

from pliant.comm import run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import TableLayout
from recsys.embedding.whole import TABLES, Whole, first_weights, hot_ids, inputs_of, plan_of, spread
from tables import default_dtype

ORDERED = {"table", "table pooled", "rows", "columns"}
"""Layouts in which every sum has one order, whatever the number of ranks.

Otherwise owners pool parts of a bag; an all-reduce has an order of its own, unless there are two ranks; and where
vectors travel as they come, weights multiply gradients before these are added, with a rounding between.
"""


def train(place, plan, num_steps, *, empty_rank=None, **settings):
    """Returns outputs, and gradients of the outputs, of every step, and the tables at the end."""
    bags = ShardedEmbeddingBag(
        plan, place.comm, lr=0.02, weights=first_weights(plan.tables), hot=hot_ids(plan), **settings
    )
    seen = []
    for step in range(num_steps):
        out = bags(inputs_of(plan.tables, place.rank, step, empty=place.rank == empty_rank and step % 2 == 0))
        sum((x.square() / 2).sum() for x in out).backward()
        bags.step()
        seen.append([x.detach() for x in out])
    return seen, bags.full_weights()


@cache
def expected(plan, num_steps, *, empty_rank=None):
    whole = Whole(plan, first_weights(plan.tables), lr=0.02)
    seen = []
    for step in range(num_steps):
        given = [
            inputs_of(plan.tables, rank, step, empty=rank == empty_rank and step % 2 == 0)
            for rank in range(plan.num_ranks)
        ]
        outs = [whole.forward(inputs) for inputs in given]
        whole.step(list(zip(given, outs, strict=True)))
        seen.append(outs)
    return seen, whole.weights


def compare(found, wanted, *, exact):
    for a, b in zip(found, wanted, strict=True):
        if exact:
            assert torch.equal(a, b), float((a - b).abs().max())
        else:
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)


def test_another_default_dtype_of_torch_changes_nothing():
    tables = tuple(table for table in TABLES if not table.weighted)
    plan = plan_of(spread(2)["mixed"], 2, tables=tables, optimizer="adam")
    start = first_weights(tables)
    batches = [[inputs_of(tables, rank, step) for step in range(2)] for rank in range(2)]

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.02, weights=start, hot=hot_ids(plan))
        for batch in batches[place.rank]:
            sum((x.square() / 2).sum() for x in bags(batch)).backward()
            bags.step()
        return bags.full_weights()

    (wanted, _) = run_world(2, be)
    with default_dtype(torch.bfloat16):
        for found in run_world(2, be):
            compare(found, wanted, exact=True)


OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad", "adam"]
CASES = [
    (n, OPTIMIZERS[(k + n) % 4] if turn is None else turn, name)
    for n, turns in ((1, [None]), (2, OPTIMIZERS), (3, [None]), (4, [None]))
    for k, name in enumerate(spread(1))
    for turn in turns
]


@pytest.mark.parametrize(
    ("n", "optimizer", "name"),
    [case if case[0] in (1, 3) else pytest.param(*case, marks=pytest.mark.extended) for case in CASES],
)
def test_equal_to_tables_that_nobody_shards_after_some_steps(n, optimizer, name):
    plan = plan_of(spread(n)[name], n, optimizer=optimizer)
    empty_rank = 1 if n > 1 else None
    # The oracle is slow, and knows of layouts only where columns are cut.
    known = plan if name == "columns" else plan_of(TableLayout(kind="rows"), n, optimizer=optimizer)
    wanted, weights = expected(known, 6, empty_rank=empty_rank)
    results = run_world(n, lambda place: train(place, plan, 6, empty_rank=empty_rank))
    exact = name in ORDERED or (name in ("hot", "replicated") and n <= 2)
    for rank, (seen, full) in enumerate(results):
        for outs, outs_wanted in zip(seen, wanted, strict=True):
            compare(outs, outs_wanted[rank], exact=exact)
        compare(full, weights, exact=exact)
