"""Expected bytes, messages and work against counting ids that are drawn, and counting against a plain loop."""

import cProfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pliant.layouts.embedding_messages import request_bytes, sizes_bytes, vector_bytes
from pliant.recsys import Frequencies, count_traffic, expected_traffic
from pliant.recsys.placement.traffic import COUNTS, PHASES, STAGES
from pliant.spec import EmbeddingPlan, Table, TableLayout

TABLES = (
    Table(name="a", num_rows=5000, dim=16),
    Table(name="b", num_rows=300, dim=16),
    Table(name="c", num_rows=40, dim=8, weighted=True),
    Table(name="d", num_rows=7, dim=8),
    Table(name="e", num_rows=20000, dim=6, pooling="mean", features=("e0", "e1")),
)
POOLING = (1, 3, 2, 1, 5)
SKEW = (1.05, 0.8, 1.2, 0.5, 1.0)
ROWS, COLUMNS = TableLayout(kind="rows"), TableLayout(kind="columns", homes=(2, 0), moves="sums")
PLANS = {
    "rows": (ROWS,) * 5,
    "sums": (replace(ROWS, moves="sums"),) * 5,
    "homes": tuple(TableLayout(kind="table", homes=(k % 3,), moves="sums" if k % 2 else "vectors") for k in range(5)),
    "hot": tuple(
        replace(ROWS, num_hot=h, moves=m, bits=b)
        for h, m, b in zip((50, 10, 5, 7, 100), ("vectors", "sums") * 2 + ("vectors",), (8, 16, 32, 8, 16), strict=True)
    ),
    "mixed": (
        replace(ROWS, num_hot=20, bits=8),
        COLUMNS,
        TableLayout(kind="table", homes=(1,), moves="sums", bits=16),
        TableLayout(kind="replicated"),
        replace(ROWS, distinct=False),
    ),
}


def plan_of(name, every=1, num_ranks=3, batch_size=64):
    return EmbeddingPlan(tables=TABLES, layouts=PLANS[name], num_ranks=num_ranks, batch_size=batch_size, every=every)


def frequencies():
    return Frequencies.zipf([t.num_rows for t in TABLES], SKEW, pooling=POOLING, names=[t.name for t in TABLES])


def drawn(plan, steps, seed):
    """Steps x ranks x features of bags: row i is the i-th most frequent."""
    rng = np.random.default_rng(seed)
    laws = []
    for table, s in zip(TABLES, SKEW, strict=True):
        p = np.arange(1, table.num_rows + 1) ** -float(s)
        laws.append(p / p.sum())
    return [
        [
            [
                rng.choice(t.num_rows, (plan.batch_size, size), p=p)
                for t, p, size in zip(TABLES, laws, POOLING, strict=True)
                for _ in t.inputs
            ]
            for _ in range(plan.num_ranks)
        ]
        for _ in range(steps)
    ]


def hot_of(plan):
    return {t.name: np.arange(each.num_hot) for t, each in zip(plan.tables, plan.layouts, strict=True)}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", PLANS)
def test_the_mean_over_many_steps_is_what_is_expected(name, every):
    plan = plan_of(name, every)
    ahead = every == 3
    found = count_traffic(plan, drawn(plan, 60, seed=4), hot_of(plan), ahead=ahead)
    wanted = expected_traffic(plan, frequencies(), ahead=ahead)
    bytes_ = np.mean([t.num_bytes for t in found], axis=0)
    assert bytes_ == pytest.approx(wanted.num_bytes, rel=0.04, abs=3)
    assert np.sum(bytes_) == pytest.approx(np.sum(wanted.num_bytes), rel=0.006)
    assert np.mean([t.num_messages for t in found], axis=0) == pytest.approx(wanted.num_messages, abs=0.02)
    work = np.mean([t.work for t in found], axis=0)
    for stage in range(len(STAGES)):
        for count in range(len(COUNTS)):
            assert work[stage, count].sum() == pytest.approx(wanted.work[stage, count].sum(), rel=0.015, abs=2), (
                STAGES[stage],
                COUNTS[count],
            )
    sent = np.mean([t.sent_bytes() for t in found], axis=0)
    assert sent == pytest.approx(wanted.sent_bytes(), rel=0.02)
    assert sum(t.sync_share for t in found) == pytest.approx(60 * wanted.sync_share)


def test_counting_agrees_with_a_loop_over_ids():
    plan = plan_of("mixed", every=2, batch_size=20)
    steps = drawn(plan, 2, seed=1)
    first, second = count_traffic(plan, steps, hot_of(plan))
    assert (first.sync_share, second.sync_share) == (0, 1)
    request, vectors = Counter(), Counter()
    indices = [t for t, table in enumerate(TABLES) for _ in table.inputs]
    for rank in range(3):
        for piece in plan.pieces():
            given = zip(indices, steps[0][rank], strict=True)
            bags = [bag for index, its in given if index == piece.index for bag in its.tolist()]
            layout, table = piece.layout, plan.tables[piece.index]
            if layout.kind == "replicated":
                continue
            asked = [(b, i) for b, bag in enumerate(bags) for i in bag if i >= layout.num_hot]
            owners = {i: piece.home if piece.home is not None else (i + piece.index) % 3 for _, i in asked}
            for owner in set(range(3)) - {rank}:
                mine = [(b, i) for b, i in asked if owners[i] == owner]
                if layout.moves == "sums":
                    num_ids, num_vectors = len(mine), len({b for b, _ in mine})
                    num_bags, weighted = num_vectors, table.weighted
                else:
                    num_ids = num_vectors = len({i for _, i in mine}) if layout.distinct else len(mine)
                    num_bags, weighted = 0, False
                request[rank, owner] += request_bytes(num_ids, num_bags, weighted=weighted)
                vectors[rank, owner] += num_vectors * vector_bytes(piece.dim, layout.bits)
    sizes, asks, answers, gradients = first.num_bytes
    assert asks.tolist() == [[request[r, o] for o in range(3)] for r in range(3)]
    assert gradients.tolist() == [[vectors[r, o] for o in range(3)] for r in range(3)]
    assert answers.tolist() == [[vectors[o, r] for o in range(3)] for r in range(3)]
    # groups: (16, vectors, 8), (8, sums, 16), (6, vectors, raw); columns of 8 that are sums of float32; weighted sums
    assert sizes[0].tolist() == [0, sizes_bytes(2, 2), sizes_bytes(2, 2)]
    touched = {i for step in steps for rank in step for bag in rank[0].tolist() for i in bag if i < 20}
    of_d = {i for step in steps for rank in step for bag in rank[3].tolist() for i in bag}
    assert [(s.dim, s.num_rows, s.num_touched) for s in second.syncs] == [(8, 7, len(of_d)), (16, 20, len(touched))]
    assert first.syncs == ()


def test_torch_offsets_padding_and_empty_bags():
    import torch

    table = Table(name="a", num_rows=10, dim=4, padding_id=3)
    plan = EmbeddingPlan(tables=(table,), layouts=(TableLayout(kind="rows", moves="sums"),), num_ranks=2, batch_size=3)
    bags = (torch.tensor([3, 1, 1, 4, 3]), torch.tensor([0, 1, 4]))
    (found,) = count_traffic(plan, [[[bags], [(np.zeros(0, np.int64), np.zeros(3, np.int64))]]])
    request = found.num_bytes[PHASES.index("request")]
    assert request.tolist() == [[0, request_bytes(2, 1, weighted=False)], [0, 0]]
    assert found.num_messages.sum(axis=(1, 2)).tolist() == [2, 1, 1, 1]


def test_what_cannot_be_counted_is_said():
    plan = plan_of("hot")
    steps = drawn(plan, 1, seed=0)
    with pytest.raises(ValueError, match="'a' has 50 hot rows in the plan, but 0 different ids"):
        count_traffic(plan, steps)
    with pytest.raises(ValueError, match="step 0 has 2 ranks"):
        count_traffic(plan, [steps[0][:2]], hot_of(plan))
    steps[0][1][3] = np.array([[7]])
    with pytest.raises(IndexError, match="rank 1 looks up row 7 of table 'd', which has rows 0 to 6"):
        count_traffic(plan, steps, hot_of(plan))
    others = Frequencies.zipf([t.num_rows for t in TABLES[::-1]], 1.0)
    with pytest.raises(ValueError, match="list both in the same order"):
        expected_traffic(plan, others)
    with pytest.raises(ValueError, match="there are 5 tables"):
        expected_traffic(plan, Frequencies.zipf([10], 1.0))


def test_thousands_of_tables_are_no_more_work_each():
    """Counted in calls of Python: as many for a table among a thousand as among a hundred, and few."""
    from pliant.recsys import RowBins

    def num_calls(num_tables):
        tables = tuple(Table(name=f"t{k}", num_rows=1000 + 997 * k, dim=64) for k in range(num_tables))
        layouts = tuple(TableLayout(kind="rows", num_hot=k % 7) for k in range(num_tables))
        plan = EmbeddingPlan(tables=tables, layouts=layouts, num_ranks=8, batch_size=1024)
        bins = RowBins.of(tables, Frequencies.zipf([t.num_rows for t in tables], 1.05, num_exact=256))
        profile = cProfile.Profile()
        profile.runcall(expected_traffic, plan, bins)
        return sum(entry.callcount for entry in profile.getstats())

    num_calls(1)  # what is done once in a process
    few, many = num_calls(100), num_calls(1000)
    assert many < 12 * few
    assert many < 1000 * 1000
