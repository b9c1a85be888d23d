"""What is for which feature: matrices, names, KeyedJaggedTensors, several features of one table."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pliant.comm import run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import Table, TableLayout
from recsys.embedding.test_beside_torch import PLAIN, everything
from recsys.embedding.test_module import compare
from recsys.embedding.test_while_training import integers
from recsys.embedding.whole import TABLES, first_weights, hot_ids, inputs_of, plan_of, spread


class Jagged:
    """As torchrec.KeyedJaggedTensor: keys, values, lengths by key."""

    def __init__(self, tables, inputs):
        self._keys = [name for t in tables for name in t.inputs]
        self._values = torch.cat([x[0] for x in inputs])
        self._lengths = torch.cat([torch.diff(x[1], append=torch.tensor([len(x[0])])) for x in inputs])
        self._strides = [len(x[1]) for x in inputs]

    def keys(self):
        return self._keys

    def stride_per_key(self):
        return self._strides

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths.int()

    def weights_or_none(self):
        return None


def test_jagged_tensors_and_matrices():
    tables = (Table(name="a", num_rows=9, dim=4), Table(name="b", num_rows=7, dim=4))
    plan = plan_of(TableLayout(kind="rows"), 2, tables=tables)

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1)
        inputs = inputs_of(tables, place.rank, 0)
        compare(bags(Jagged(tables, inputs)), bags(inputs), exact=True)
        compare(bags(Jagged(tables[::-1], inputs[::-1])), bags(inputs), exact=True)
        square = [torch.randint(0, 7, (5, 3)) for _ in tables]
        flat = [(x.view(-1).int(), torch.arange(5) * 3) for x in square]
        compare(bags(square), bags(flat), exact=True)
        compare(bags([(x, None) for x in square]), bags(flat), exact=True)
        with torch.no_grad():
            assert not bags(flat)[0].requires_grad
        return bags.full_weights()

    a, b = run_world(2, be)
    alone = plan_of(TableLayout(kind="replicated"), 1, tables=tables)
    (c,) = run_world(1, lambda place: [ShardedEmbeddingBag(alone, place.comm, lr=0.1).full_weights()])
    compare(a, b, exact=True)
    compare(a, c[0], exact=True)  # first values do not depend on the plan


@pytest.mark.parametrize("name", list(spread(1)))
def test_features_of_one_table_are_modules_with_one_weight(name):
    tables = tuple(replace(t, features=names) for t, names in zip(PLAIN, (("seen", "liked"), ()), strict=True))
    plan = plan_of(spread(2)[name], 2, tables=tables)

    def given(rank, step):
        seen, mean = everything(rank, step)
        liked, _ = everything(rank, step + 50)
        return [(ids, offsets[:-1]) for ids, offsets in (seen, liked, mean)]

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(tables), hot=hot_ids(plan))
        seen = []
        for step in range(3):
            out = bags(given(place.rank, step))
            integers(out, place.rank, step).backward()
            bags.step()
            seen.append([x.detach() for x in out])
        return seen, bags.full_weights()

    results = run_world(2, be)
    weights = [w.clone().requires_grad_() for w in first_weights(tables)]
    owners = (0, 0, 1)
    for step in range(3):
        for rank in range(2):
            out = [
                nn.functional.embedding_bag(
                    ids, weights[t], offsets, mode=tables[t].pooling, padding_idx=tables[t].padding_id
                )
                for t, (ids, offsets) in zip(owners, given(rank, step), strict=True)
            ]
            for a, b in zip(results[rank][0][step], out, strict=True):
                torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-5)  # a bag sums 25 rows
            (integers(out, rank, step) / 2).backward()
        with torch.no_grad():
            for w in weights:
                w -= 0.1 * w.grad
                w.grad = None
    for _, full in results:
        for a, b in zip(full, weights, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-5)


def turned(kind, inputs):
    """The inputs of TABLES by name, the last one first."""
    names = [name for table in TABLES for name in table.inputs][::-1]
    if kind == "dict":
        return dict(zip(names, inputs[::-1], strict=True))
    keyed = tuple(Table(name=name, num_rows=1, dim=1) for name in names)
    return Jagged(keyed, inputs[::-1])


@pytest.mark.parametrize("kind", ["dict", "keyed"])
def test_names_say_what_is_for_which_feature_in_any_order_and_number_of_bags(kind):
    plan = plan_of(TableLayout(kind="rows"), 2)

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(TABLES))
        inputs = inputs_of(TABLES, place.rank, 0)
        more = inputs_of(TABLES, place.rank + 1, 1)
        inputs = [more[k] if k % 3 == 0 else its for k, its in enumerate(inputs)]  # keys have unlike bags
        if kind == "keyed":  # all keys have weights, or none
            inputs = [its[:2] for its in inputs]
        compare(bags(turned(kind, inputs)), bags(inputs), exact=True)
        return True

    assert run_world(2, be) == [True, True]
