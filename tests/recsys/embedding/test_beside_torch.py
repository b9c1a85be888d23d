"""Beside torch's own modules and optimizers; any inputs; hierarchies."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from pliant.comm import run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import Table, TableLayout
from recsys.embedding.test_module import compare
from recsys.embedding.test_while_training import integers
from recsys.embedding.whole import Whole, first_weights, hot_ids, inputs_of, plan_of, spread

PLAIN = (
    Table(name="sum", num_rows=20, dim=6),
    Table(name="mean", num_rows=5, dim=3, pooling="mean", padding_id=2),
)


def modules(**settings):
    torch.manual_seed(4)
    return [
        nn.EmbeddingBag(
            t.num_rows, t.dim, mode=t.pooling, padding_idx=t.padding_id, include_last_offset=True, **settings
        )
        for t in PLAIN
    ]


def everything(rank, step):
    """Every row once, so that momenta of rows and of whole tensors are the same, and then some."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    found = []
    for table in PLAIN:
        ids = torch.cat([torch.arange(table.num_rows), torch.randint(0, table.num_rows, (9,), generator=generator)])
        found.append((ids, torch.tensor([0, 2, 2, 4, len(ids)])))
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_modules_of_torch_and_its_optimizers(optimizer):
    plan = plan_of(TableLayout(kind="rows"), 2, optimizer=optimizer, tables=PLAIN)
    first = modules()  # here, since ranks that are threads share torch's generator

    def be(place):
        with pytest.raises(ValueError, match="for each"):
            ShardedEmbeddingBag.from_modules(first[:1], plan, place.comm, lr=0.1)
        bags = ShardedEmbeddingBag.from_modules(first, plan, place.comm, lr=0.1)
        outs = []
        for step in range(5):
            bags.lr = 0.1 / (1 + step)
            out = bags(everything(place.rank, step))
            integers(out, place.rank, step).backward()
            bags.step()
            outs.append([x.detach() for x in out])
        return outs, bags.full_weights()

    results = run_world(2, be)
    sparse = optimizer == "adam"
    theirs = modules(sparse=sparse)
    weights = [m.weight for m in theirs]
    make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}[optimizer]
    optim = make(weights, lr=0.1)
    for step in range(5):
        optim.param_groups[0]["lr"] = 0.1 / (1 + step)
        optim.zero_grad()
        for rank in range(2):
            out = [m(*x) for m, x in zip(theirs, everything(rank, step), strict=True)]
            for a, b in zip(results[rank][0][step], out, strict=True):
                torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-5)  # a bag sums 25 rows
            (integers(out, rank, step) / 2).backward()
        optim.step()
    for _, full in results:
        compare(full, [w.detach() for w in weights], exact=False)


def test_what_tables_cannot_do_is_refused():
    plan = plan_of(TableLayout(kind="rows"), 1, tables=PLAIN)

    def be(place):
        with pytest.raises(ValueError, match="max_norm"):
            ShardedEmbeddingBag.from_modules(modules(max_norm=1.0), plan, place.comm, lr=0.1)
        with pytest.raises(ValueError, match="but the plan"):
            ShardedEmbeddingBag.from_modules(modules()[::-1], plan, place.comm, lr=0.1)
        tied = modules()
        tied[1].weight = tied[0].weight
        with pytest.raises(ValueError, match="'sum' and 'mean' have one weight; make them one table"):
            ShardedEmbeddingBag.from_modules(tied, plan, place.comm, lr=0.1)
        bags = ShardedEmbeddingBag.from_modules(modules(), plan, place.comm, lr=0.1)
        with pytest.raises(ValueError, match="must end with the number of its ids, 29"):
            bags([(ids, offsets[:-1]) for ids, offsets in everything(0, 0)])

    run_world(1, be)


@pytest.mark.parametrize("every", [1, 2])
def test_hosts_first(every):
    def be(place, hierarchical):
        plan = plan_of(TableLayout(kind="replicated"), 4, hierarchical=hierarchical, every=every)
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(plan.tables), hosts=[[0, 1], [2, 3]])
        for step in range(4):
            sum((x.square() / 2).sum() for x in bags(inputs_of(plan.tables, place.rank, step))).backward()
            bags.step()
        assert bags.stats().sent_bytes["replicas"] > 0
        full = bags.full_weights()
        bags.close()
        return full

    flat = run_world(4, lambda place: be(place, False))
    for full in run_world(4, lambda place: be(place, True)):
        compare(full, flat[0], exact=False)


def test_several_passes_before_a_step_add_up():
    plan = plan_of(TableLayout(kind="rows", num_hot=1), 2)

    def be(place, passes):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(plan.tables), hot=hot_ids(plan))
        outs = []
        for k in passes:
            outs += bags(inputs_of(plan.tables, place.rank, k))
            if len(passes) > 1:
                sum(x.sum() for x in outs).backward()
                outs = []
        if outs:
            sum(x.sum() for x in outs).backward()
        bags.step()
        return bags.full_weights()

    whole = Whole(plan, first_weights(plan.tables), lr=0.1)
    start = [w.clone() for w in whole.weights]
    changes = [torch.zeros_like(w) for w in start]
    for k in (0, 1):
        whole.weights = [w.clone() for w in start]
        given = [inputs_of(plan.tables, rank, k) for rank in range(2)]
        whole.step([(inputs, [torch.ones_like(x) for x in whole.forward(inputs)]) for inputs in given])
        changes = [c + (w - s) for c, w, s in zip(changes, whole.weights, start, strict=True)]
    for full in run_world(2, lambda place: be(place, (0, 1))):
        compare(full, [s + c for s, c in zip(start, changes, strict=True)], exact=False)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 4))
    tables = tuple(
        Table(
            name=str(t),
            num_rows=(num_rows := draw(st.sampled_from([1, 2, 3, 17]))),
            dim=draw(st.sampled_from([1, 3, 8])),
            pooling=(pooling := draw(st.sampled_from(["sum", "mean"]))),
            padding_id=draw(st.sampled_from([None, 0, num_rows - 1])),
            weighted=pooling == "sum" and draw(st.booleans()),
        )
        for t in range(draw(st.integers(1, 4)))
    )
    kinds = [
        draw(st.sampled_from(["table", "table pooled", "rows", "rows pooled", "replicated", "hot"])) for _ in tables
    ]

    def layout(table, t):
        its = spread(n)[kinds[t]]
        return its(table, t) if callable(its) else its

    empty = draw(st.sampled_from([None, *range(n)]))
    optimizer = draw(st.sampled_from(["sgd", "adagrad", "rowwise_adagrad", "adam"]))
    return plan_of(layout, n, optimizer=optimizer, tables=tables), empty, draw(st.integers(0, 1000))


@settings(max_examples=15)
@given(cases())
def test_any_tables_any_layouts_any_bags(case):
    plan, empty, seed = case
    n = plan.num_ranks

    def inputs(rank, step):
        return inputs_of(plan.tables, rank, seed + step, empty=rank == empty)

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.05, weights=first_weights(plan.tables), hot=hot_ids(plan))
        for step in range(2):
            sum((x.square() / 2).sum() for x in bags(inputs(place.rank, step))).backward()
            bags.step()
        return bags.full_weights()

    whole = Whole(plan, first_weights(plan.tables), lr=0.05)
    for step in range(2):
        whole.step([(its, whole.forward(its)) for its in (inputs(rank, step) for rank in range(n))])
    for full in run_world(n, be):
        for a, b in zip(full, whole.weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
