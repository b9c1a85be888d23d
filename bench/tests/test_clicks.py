"""Generated clicks against the law that they state."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from pliant.recsys import CRITEO_BAGS, CRITEO_ROWS, FrequencyCounter, unique_rows
from pliant.recsys.frequencies.hashing import hashed
from pliant_bench.clicks.batch import auc
from pliant_bench.clicks.drift import drift
from pliant_bench.clicks.generator import Clicks
from pliant_bench.clicks.permutation import Permutation
from pliant_bench.clicks.zipf import fit_zipf

SMALL = Clicks(num_rows=(5_000, 300, 3), bag_sizes=(1, 4, 1), empty_share=0.1, seed=3)


@given(st.integers(1, 3_000), st.integers(0, 2**63))
def test_permutations_are_bijections(size, key):
    assert np.sort(Permutation(size, key)(np.arange(size))).tolist() == list(range(size))


def test_permutations_look_random():
    image = Permutation(40_000_000, 5)(np.arange(100_000))
    assert abs(np.corrcoef(np.arange(100_000), image)[0, 1]) < 0.02
    assert np.abs(np.bincount(image % 7) / 100_000 - 1 / 7).max() < 0.006
    assert np.abs(np.histogram(image, 10, (0, 4e7))[0] / 1e5 - 0.1).max() < 0.006
    assert not np.array_equal(image, Permutation(40_000_000, 6)(np.arange(100_000)))


def test_hashes_are_those_published():
    """SplitMix64 from state 0: the first outputs of its reference implementation."""
    assert hashed(np.array([0]))[0] == 0xE220A8397B1DCDAF
    assert hashed(np.array([0]), 1)[0] == 0x6E789E6AA1B965F4


def test_the_same_step_and_rank_give_the_same_batch():
    one, two = SMALL.batch(5, 1, 64), Clicks(**vars_of(SMALL)).batch(5, 1, 64)
    assert all(torch.equal(a, b) for a, b in zip(one.ids, two.ids, strict=True))
    assert torch.equal(one.dense, two.dense)
    assert torch.equal(one.label, two.label)
    for other in (SMALL.batch(6, 1, 64), SMALL.batch(5, 2, 64), Clicks(**vars_of(SMALL, seed=4)).batch(5, 1, 64)):
        assert not torch.equal(one.dense, other.dense)
        assert not torch.equal(one.ids[0], other.ids[0])


def vars_of(clicks, **changed):
    return {name: getattr(clicks, name) for name in Clicks.__dataclass_fields__} | changed


def test_batches_fit_embedding_bags():
    batch = SMALL.batch(0, 0, 200)
    assert (batch.label.numel(), tuple(batch.dense.shape), batch.dense.dtype) == (200, (200, 13), torch.float32)
    assert set(batch.label.tolist()) == {0.0, 1.0}
    for rows, size, ids, offsets in zip(SMALL.tables, (1, 4, 1), batch.ids, batch.offsets, strict=True):
        assert torch.nn.EmbeddingBag(rows, 2, mode="sum")(ids, offsets).shape == (200, 2)
        sizes = torch.diff(offsets, append=torch.tensor([ids.numel()]))
        assert set(sizes.tolist()) == {0, size}
        assert 0 <= int(ids.min()) <= int(ids.max()) < rows


def test_criteo_is_as_published():
    clicks = Clicks(bag_sizes=CRITEO_BAGS)
    assert len(CRITEO_ROWS) == len(CRITEO_BAGS) == len(clicks.batch(0, 0, 2).ids) == 26
    assert sum(CRITEO_BAGS) == 214
    assert sum(CRITEO_ROWS) == 204_184_588
    assert max(Clicks(max_rows=1_000).tables) == 1_000
    assert min(abs(s - 1.05) for s in clicks.exponents) < max(abs(s - 1.05) for s in clicks.exponents) <= 0.1


@pytest.mark.parametrize("plateau", [0.0, 20.0])
def test_lookups_follow_the_stated_law(plateau):
    clicks = Clicks(num_rows=(1_000_000, 2_000), plateau=plateau, exponent_jitter=0.0, bag_sizes=(1, 3))
    stated = clicks.frequencies()
    counter = FrequencyCounter(clicks.tables)
    uniques = np.zeros(2)
    for step in range(60):
        batch = clicks.batch(step, 0, 4_000)
        counter.add(batch.ids, batch.offsets)
        uniques += [ids.unique().numel() / 60 for ids in batch.ids]
    for t, (law, found) in enumerate(zip(stated.tables, counter.result().tables, strict=True)):
        expected = unique_rows(law, 4_000 * law.pooling)
        assert abs(uniques[t] - expected) < 4 * np.sqrt(expected / 60)
        p = dict(zip(law.head_ids.tolist(), law.head_p.tolist(), strict=True))
        off = [
            abs(x - p[i]) / np.sqrt(p[i] / found.num_lookups)
            for i, x in zip(found.head_ids[:50].tolist(), found.head_p[:50], strict=True)
        ]
        assert max(off) < 4.5
        assert found.pooling == law.pooling
        fit = fit_zipf(found, plateau=plateau > 0)
        assert fit.exponent == pytest.approx(1.05, abs=0.03)
        assert fit.fits


@given(st.integers(1, 200), st.sampled_from([1.0, 0.5, 0.3, 0.1]), st.integers(0, 400))
def test_drift_keeps_a_bijection(num_rows, share, step):
    clicks = Clicks(num_rows=(num_rows,), drift_share=share, drift_every=10)
    assert np.sort(clicks.ids(0, np.arange(num_rows), step)).tolist() == list(range(num_rows))


def test_drift_moves_as_many_rows_as_stated():
    clicks = Clicks(num_rows=(100_000,), drift_share=0.1, drift_every=10)
    places = np.arange(100_000)
    for step in (0, 35, 95, 1_000):
        now, later = clicks.ids(0, places, step), clicks.ids(0, places, step + 10)
        assert (now != later).mean() == pytest.approx(0.1, abs=0.001)
    laws = [clicks.frequencies(step).tables[0] for step in (0, 9, 10, 50)]
    assert [drift(laws[0], law, num_hot=1_000).overlap for law in laws] == pytest.approx([1, 1, 0.9, 0.5], abs=0.02)


def test_labels_can_be_learned_up_to_the_best_auc():
    clicks = Clicks(num_rows=(50, 20), exponent=0.5, seed=1)
    batch, test = clicks.batch(0, 0, 40_000), clicks.batch(1, 0, 40_000)
    best = clicks.best_auc()

    def features(b):
        rows = [torch.nn.functional.one_hot(i, n) for i, n in zip(b.ids, clicks.tables, strict=True)]
        return torch.cat([b.dense, *rows], 1).double()

    x, y = features(batch), batch.label.double() - batch.label.mean()
    weights = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ y)
    assert best - 0.01 < auc(features(test) @ weights, test.label) < best + 0.006
    assert 0.7 < best < 0.9
    assert abs(clicks.best_auc(num_samples=20_000, step=9) - best) < 0.006


def test_auc_counts_pairs():
    scores, labels = torch.tensor([3.0, 1.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert auc(scores, labels) == (1 + 1 + 1 + 0.5) / 4
    assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels))
    with pytest.raises(ValueError, match="all are of one kind"):
        auc(scores, torch.ones(4))
    with pytest.raises(ValueError, match="or NaN"):
        auc(torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0]))


def test_meaningless_clicks_are_refused():
    for wrong, said in [
        ({"bag_sizes": (1, 2)}, "2 bag sizes for 26 tables"),
        ({"empty_share": 1.0}, "empty_share must be in"),
        ({"num_rows": (0,)}, "at least 1 row each"),
        ({"exponent": -1.0}, "exponent and jitter at least 0"),
    ]:
        with pytest.raises(ValueError, match=said):
            Clicks(**wrong)
