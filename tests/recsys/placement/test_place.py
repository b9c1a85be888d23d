"""The placement: against every layout of small cases, against all alike, in its limits, and what it refuses."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pliant.recsys import EvaluatedPlan, Frequencies, PlacementLimits, place_tables
from pliant.spec import EmbeddingPlan, Host, Rack, Table, TableLayout, Topology

GB = 1e9


def within(memory_bytes=GB, **more):
    return PlacementLimits(memory_bytes=memory_bytes, **more)


def network(rate=1.25e7, hosts=3, ranks=1, delay=1e-3):
    return Topology(
        hosts=tuple(
            Host(name=f"h{k}", num_ranks=ranks, send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay)
            for k in range(hosts)
        )
    )


def case(seed, num_tables=3):
    rng = np.random.default_rng(seed)
    rows = [int(10 ** rng.uniform(1, 5.5)) for _ in range(num_tables)]
    pooling = [int(rng.choice([1, 1, 2, 5, 10, 30])) for _ in rows]
    tables = [Table(name=f"t{k}", num_rows=n, dim=int(rng.choice([16, 64]))) for k, n in enumerate(rows)]
    frequencies = Frequencies.zipf(rows, rng.uniform(0.6, 1.3, num_tables).tolist(), pooling=pooling)
    topology = network(rate=float(rng.choice([1.25e6, 1.25e7, 1.25e8])), hosts=int(rng.choice([2, 3])))
    return tables, frequencies, topology


def swept(placement, counts=(0, 1, 4, 16, 64, 256, 1024, 4096, 16384)):
    """Samples per second of the best of all layouts: homes, rows, hot or not, vectors or sums, replicas."""
    problem, plan = placement.problem, placement.plan
    n = plan.num_ranks
    best = 0.0
    options = [
        [
            *(TableLayout(kind="table", homes=(r,), moves="sums") for r in range(n)),
            *(
                TableLayout(kind="rows", moves=m, num_hot=h)
                for m in ("vectors", "sums")
                for h in counts
                if h < table.num_rows and (h == 0 or m == "vectors")
            ),
            TableLayout(kind="replicated"),
        ]
        for table in problem.tables
    ]
    for every in {1, problem.limits.max_staleness + 1}:
        for layouts in product(*options):
            value = EvaluatedPlan.of(replace(plan, layouts=layouts, every=every), problem)
            if value.excess(problem.limits) == 0:
                best = max(best, value.samples_per_s)
    return best


@pytest.mark.parametrize("staleness", [0, 7])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.extended) for k in range(2, 8))])
def test_within_three_percent_of_an_exhaustive_sweep(seed, staleness):
    tables, frequencies, topology = case(seed, num_tables=2)
    total = sum(t.num_rows * 4 * (t.dim + 1) for t in tables)
    share = np.random.default_rng(seed).choice([0.75, 1.2, 4.0])
    limits = within(share * total + 3e6, max_staleness=staleness)
    found = place_tables(tables, frequencies, topology, limits, batch_sizes=(128,))
    assert found.chosen.excess(limits) == 0
    assert found.samples_per_s >= 0.97 * swept(found)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(4))
def test_the_integer_program_finds_nothing_much_better(seed):
    tables, frequencies, topology = case(100 + seed, num_tables=5)
    limits = PlacementLimits(
        memory_bytes=0.6 * sum(t.num_rows * 4 * (t.dim + 1) for t in tables) + 5e6, max_staleness=3
    )
    fast = place_tables(tables, frequencies, topology, limits, batch_sizes=(128,))
    exact = place_tables(tables, frequencies, topology, limits, batch_sizes=(128,), exact=True)
    assert exact.chosen.excess(limits) == 0
    assert fast.samples_per_s >= 0.97 * exact.samples_per_s
    assert exact.samples_per_s >= fast.samples_per_s * (1 - 1e-9)


def test_a_flat_network_replicates_nothing_when_every_step_is_synchronized():
    rows = [1_000_000, 50_000, 3_000]
    tables = [Table(name=f"t{k}", num_rows=n, dim=64) for k, n in enumerate(rows)]
    frequencies = Frequencies.zipf(rows, 1.05)
    found = place_tables(tables, frequencies, network(1.25e8, hosts=4), within(), batch_sizes=(1024,))
    assert [layout.num_hot for layout in found.plan.layouts] == [0, 0, 0]
    assert all(layout.kind != "replicated" for layout in found.plan.layouts)
    assert (found.plan.every, found.plan.hierarchical) == (1, False)
    stale = place_tables(
        tables,
        frequencies,
        network(1.25e8, hosts=4),
        within(max_staleness=15),
        batch_sizes=(1024,),
    )
    assert any(layout.num_hot or layout.kind == "replicated" for layout in stale.plan.layouts)
    assert stale.plan.every > 1
    assert stale.samples_per_s > 1.05 * found.samples_per_s


def test_ranks_that_share_a_link_make_replicas_pay():
    tables = [Table(name="t", num_rows=1_000_000, dim=64)]
    frequencies = Frequencies.zipf([1_000_000], 1.2, pooling=4)
    limits = within()
    flat = place_tables(tables, frequencies, network(1.25e7, hosts=8, delay=0), limits, batch_sizes=(1024,))
    shared = place_tables(tables, frequencies, network(1.25e7, hosts=2, ranks=8, delay=0), limits, batch_sizes=(1024,))
    assert flat.plan.layouts[0].num_hot == 0
    assert shared.plan.layouts[0].num_hot > 100


@pytest.mark.extended
@settings(max_examples=2, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([0, 7]))
def test_more_memory_or_rate_is_never_slower_and_it_beats_all_alike(seed, staleness):
    tables, frequencies, topology = case(seed, num_tables=3)
    total = sum(t.num_rows * 4 * (t.dim + 1) for t in tables) + 4e6

    def solved(memory, topology):
        limits = within(memory, max_staleness=staleness)
        return place_tables(tables, frequencies, topology, limits, batch_sizes=(64,))

    little, more = solved(total, topology), solved(2 * total, topology)
    assert more.samples_per_s >= 0.99 * little.samples_per_s
    for each in little.alike.values():
        if each.excess(little.problem.limits) == 0:
            assert little.samples_per_s >= each.samples_per_s * (1 - 1e-9)
    hosts = tuple(replace(h, send_bytes_per_s=1e9, receive_bytes_per_s=1e9) for h in topology.hosts)
    assert solved(total, replace(topology, hosts=hosts)).samples_per_s >= 0.99 * little.samples_per_s
    bought = little.given_more(memory_bytes=GB, bytes_per_s=1.25e8)
    assert bought.samples_per_s >= little.samples_per_s
    speeds = [s for _, s in little.curve([total, 8 * total, 1.0]) if s is not None]
    assert speeds == sorted(speeds)
    assert len(speeds) == 2


@pytest.mark.extended
def test_limits_of_bytes_and_work_are_kept():
    tables, frequencies, topology = case(5, num_tables=6)
    free = place_tables(tables, frequencies, topology, within(max_staleness=31), batch_sizes=(64, 256))
    sent = float(free.chosen.sent_bytes.max())
    limits = within(max_staleness=31, sent_bytes=0.6 * sent)
    tight = place_tables(tables, frequencies, topology, limits, batch_sizes=(64, 256))
    assert float(tight.chosen.sent_bytes.max()) <= 0.6 * sent
    assert tight.samples_per_s <= free.samples_per_s * 1.0001
    with pytest.raises(ValueError, match="no placement keeps all limits: at best a rank sends"):
        place_tables(tables, frequencies, topology, replace(limits, sent_bytes=1.0, max_staleness=0), batch_sizes=(64,))


def test_bits_and_batch_are_chosen():
    tables, frequencies, topology = case(3, num_tables=3)
    topology = network(1.25e6)
    wide = place_tables(tables, frequencies, topology, within(), batch_sizes=(32, 512), dense_sample_s=1e-5)
    narrow = place_tables(
        tables,
        frequencies,
        topology,
        within(bits=(32, 8)),
        batch_sizes=(32, 512),
        dense_sample_s=1e-5,
    )
    assert {layout.bits for layout in narrow.plan.layouts if layout.kind != "replicated"} <= {8, 32}
    assert narrow.samples_per_s > 1.5 * wide.samples_per_s
    assert dict(wide.others)[512] == pytest.approx(wide.samples_per_s, rel=1e-3) or wide.plan.batch_size == 32
    assert narrow.plan.batch_size == max(narrow.others, key=lambda each: each[1])[0]


def test_racks_are_seen():
    tables, frequencies, _ = case(8, num_tables=4)
    flat = network(1.25e8, hosts=4)
    racks = tuple(
        Rack(name=f"r{k}", hosts=(f"h{2 * k}", f"h{2 * k + 1}"), send_bytes_per_s=1e6, receive_bytes_per_s=1e6)
        for k in range(2)
    )
    limits = within(max_staleness=7)
    fast = place_tables(tables, frequencies, flat, limits, batch_sizes=(128,))
    slow = place_tables(tables, frequencies, replace(flat, racks=racks), limits, batch_sizes=(128,))
    assert slow.samples_per_s < fast.samples_per_s
    assert slow.samples_per_s >= EvaluatedPlan.of(fast.plan, slow.problem).samples_per_s * (1 - 1e-6)


def test_refusals_say_what_is_missing_where():
    tables = [Table(name="small", num_rows=100, dim=8), Table(name="huge", num_rows=10**9, dim=128)]
    frequencies = Frequencies.zipf([100, 10**9], 1.05)
    with pytest.raises(
        ValueError, match=r"no placement fits into 80GB on each rank: at best rank \d is short of 9\d"
    ) as e:
        place_tables(tables, frequencies, network(), within(80 * GB), batch_sizes=(64,))
    assert "the largest, 'huge', 516GB" in str(e.value)
    with pytest.raises(ValueError, match=r"batch sizes are \[\]"):
        place_tables(tables, frequencies, network(), within(), batch_sizes=())
    with pytest.raises(ValueError, match=r"bits .7,. cannot be"):
        within(bits=(7,))


def test_one_rank_needs_no_network():
    tables, frequencies, _ = case(1)
    found = place_tables(tables, frequencies, network(hosts=1), within(), batch_sizes=(64,))
    assert found.chosen.traffic.num_bytes.sum() == 0
    assert isinstance(found.plan, EmbeddingPlan)
