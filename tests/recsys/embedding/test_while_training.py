"""Rows on all ranks, changes of the hot set, prefetching, saving: nothing of it changes what is learned."""

import pytest
import torch

from pliant.comm import run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import TableLayout
from recsys.embedding.whole import TABLES, first_weights, hot_ids, inputs_of, plan_of, spread

HOT = TableLayout(kind="rows", num_hot=1)


def dyadic(tables):
    """Small integers: their sums are exact in any order."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(-8, 9, (t.num_rows, t.dim), generator=generator).float() for t in tables]


def integers(outs, rank, step):
    """Gradients that are small multiples of 1/4."""
    generator = torch.Generator().manual_seed(77 * step + rank)
    return sum((x * torch.randint(-4, 5, x.shape, generator=generator) / 4).sum() for x in outs)


SUMS = tuple(t for t in TABLES if t.pooling == "sum" and not t.weighted)


def hot_plan(n, **settings):
    return plan_of(
        lambda table, t: TableLayout(kind="rows", num_hot=min(6, table.num_rows)), n, tables=SUMS, **settings
    )


def some_hot(plan, step):
    generator = torch.Generator().manual_seed(step)
    return {
        table.name: torch.randperm(table.num_rows, generator=generator)[: layout.num_hot]
        for table, layout in zip(plan.tables, plan.layouts, strict=True)
    }


@pytest.mark.parametrize("n", [1, 2, 4])
def test_changes_of_the_hot_set_change_nothing(n):
    plan = hot_plan(n)

    def be(place, *, change):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.25, weights=dyadic(plan.tables), hot=some_hot(plan, 0))
        for step in range(8):
            if change and step % 2:
                before = bags.full_weights()
                bags.set_hot(some_hot(plan, step) if step < 7 else {})
                assert all(torch.equal(a, b) for a, b in zip(before, bags.full_weights(), strict=True))
            integers(bags(inputs_of(plan.tables, place.rank, step)), place.rank, step).backward()
            bags.step()
        return bags.full_weights()

    fixed = run_world(n, lambda place: be(place, change=False))
    changed = run_world(n, lambda place: be(place, change=True))
    for a, b in zip(fixed, changed, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(fixed[0][0], dyadic(plan.tables)[0])


@pytest.mark.parametrize(("kind", "optimizer"), [("vectors", "rowwise_adagrad"), ("sums", "adam")])
def test_prefetching_changes_nothing(kind, optimizer):
    plan = plan_of(lambda table, t: TableLayout(kind="rows", moves=kind, num_hot=t % 2), 3, optimizer=optimizer)

    def be(place, *, ahead):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(plan.tables), hot=hot_ids(plan))
        batches = [inputs_of(plan.tables, place.rank, step) for step in range(6)]
        seen = []
        for step, batch in enumerate(batches):
            out = bags(batch)
            seen.append([x.detach() for x in out])
            if ahead and step + 1 < len(batches):
                bags.prefetch(batches[step + 1])
            sum((x.square() / 2).sum() for x in out).backward()
            bags.step()
        early = bags.stats().sent_bytes["early"] if ahead else 0
        bags.close()
        return seen, bags.num_steps, early

    plain = run_world(3, lambda place: be(place, ahead=False))
    fetched = run_world(3, lambda place: be(place, ahead=True))
    for (a, _, _), (b, _, early) in zip(plain, fetched, strict=True):
        assert all(torch.equal(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True))
        assert (early > 0) == (kind == "vectors")


def test_prefetching_knows_of_a_backward_that_comes_late():
    plan = plan_of(TableLayout(kind="rows"), 2)

    def be(place, *, ahead):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(plan.tables))
        batch = inputs_of(plan.tables, place.rank, 0)
        out = bags(batch)
        bags.step()
        sum(x.sum() for x in out).backward()
        if ahead:
            bags.prefetch(batch)
            bags._prefetcher._next[1].result()  # whatever is sent early has been read
        bags.step()
        found = [x.detach() for x in bags(batch)]
        bags.close()
        return found

    for plain, fetched in zip(*(run_world(2, lambda p, a=a: be(p, ahead=a)) for a in (False, True)), strict=True):
        assert all(map(torch.equal, plain, fetched))


@pytest.mark.parametrize("every", [1, 3])
def test_replicas_stay_alike_and_age_at_most_so_much(every):
    plan = hot_plan(3, every=every, optimizer="adagrad")

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(plan.tables), hot=some_hot(plan, 0))
        replicas = []
        for step in range(7):
            sum(x.square().sum() for x in bags(inputs_of(plan.tables, place.rank, step))).backward()
            bags.step()
            assert bags.age == (step + 1) % every
            replicas.append([r.rows.weights.clone() for r in bags._local.replicas.values()])
        return replicas

    first, *others = run_world(3, be)
    for other in others:
        assert all(torch.equal(a, b) for x, y in zip(first, other, strict=True) for a, b in zip(x, y, strict=True))
    assert torch.equal(first[0][0], first[1][0]) == (every > 1)


@pytest.mark.parametrize(
    "optimizer",
    ["adam", *(pytest.param(each, marks=pytest.mark.extended) for each in ("rowwise_adagrad", "sgd", "adagrad"))],
)
def test_a_state_of_4_ranks_loads_at_3_and_1_under_another_plan(optimizer):
    names = list(spread(4))

    def plan(n, shift):
        def layout(table, t):
            chosen = spread(n)[[name for name in names if name != "columns"][(t + shift) % (len(names) - 1)]]
            return chosen(table, t) if callable(chosen) else chosen

        return plan_of(layout, n, optimizer=optimizer, tables=SUMS)

    def train(bags, rank, n, steps):
        # what ranks look up in all is the same whatever their number: 12 parts, dealt out
        for step in steps:
            for part in range(rank, 12, n):
                integers(bags(inputs_of(SUMS, part % 4, 100 * part + step)), part, step).backward()
            bags.step()

    def save(place):
        its = plan(4, 0)
        bags = ShardedEmbeddingBag(its, place.comm, lr=0.25, weights=dyadic(SUMS), hot=hot_ids(its), average=False)
        train(bags, place.rank, 4, range(3))
        state = {k: torch.utils._pytree.tree_map(lambda x: x.clone(), v) for k, v in bags.state_dict().items()}
        train(bags, place.rank, 4, range(3, 6))
        return state, bags.full_weights()

    saved = run_world(4, save)
    merged = {k: v for state, _ in saved for k, v in state.items()}
    for n, shift in ((3, 1), (1, 2), (4, 5)):

        def load(place, n=n, shift=shift):
            its = plan(n, shift)
            bags = ShardedEmbeddingBag(its, place.comm, lr=0.25, average=False, hot=hot_ids(its))
            bags.load_state_dict(merged)
            if n == 1:
                bags.load_state_dict(bags.state_dict())  # tensors that are its own
            train(bags, place.rank, n, range(3, 6))
            return bags.full_weights()

        for weights in run_world(n, load):
            for a, b in zip(weights, saved[0][1], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
