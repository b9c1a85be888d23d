"""Times of steps: by hand where that is easy, fitted rates from steps, measured ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import pliant
from pliant.comm import RecordedComm, hierarchical_comm
from pliant.netmodel import IDEAL, Links, Overheads
from pliant.recsys import Frequencies, Rates, expected_traffic, fit_rates, memory_per_rank, step_cost
from pliant.recsys.placement.traffic import PHASES, sync_pairs
from pliant.spec import EmbeddingPlan, Host, Link, Rack, Table, TableLayout, Topology, from_json, to_json

FREE = Rates(
    id_s=0, row_s=0, number_s=0, coded_s=0, updated_s=0, piece_s=0, lookup_s=0, step_s=0, overheads=IDEAL,
)  # fmt: skip


def plan(layout, num_ranks, batch_size=100, **settings):
    table = Table(name="t", num_rows=1000, dim=16)
    return EmbeddingPlan(tables=(table,), layouts=(layout,), num_ranks=num_ranks, batch_size=batch_size, **settings)


def topology(hosts, ranks=1, rate=1e6, delay=0.0, **more):
    each = [
        Host(name=f"h{k}", num_ranks=ranks, send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay)
        for k in range(hosts)
    ]
    return Topology(hosts=tuple(each), **more)


def test_links_by_hand():
    """A table pooled at rank 0 of four hosts: three requests arrive, and three times 100 vectors of 64 bytes leave."""
    found = expected_traffic(plan(TableLayout(kind="table", homes=(0,), moves="sums"), 4), Frequencies.uniform([1000]))
    cost = step_cost(found, Links(topology(4, delay=1e-3), FREE.overheads), FREE)
    assert cost.part_s("request") == pytest.approx(3 * 100 * 8 / 1e6 + 1e-3)
    assert cost.part_s("answer") == pytest.approx(3 * 100 * 64 / 1e6 + 1e-3)
    assert cost.part_s("gradients") == cost.part_s("answer")
    assert cost.total_s == pytest.approx(cost.wire_s)
    # on two hosts of two ranks, one of the three is at home and goes by memory
    shared = step_cost(found, Links(topology(2, ranks=2), FREE.overheads), FREE)
    assert shared.part_s("answer") == pytest.approx(2 * 100 * 64 / 1e6)
    racks = tuple(Rack(name=f"r{k}", hosts=(f"h{2 * k}", f"h{2 * k + 1}"), send_bytes_per_s=1e5) for k in range(2))
    behind = step_cost(found, Links(topology(4, racks=racks), FREE.overheads), FREE)
    assert behind.part_s("answer") == pytest.approx(2 * 100 * 64 / 1e5)
    slow = (Link(source="h0", target="h3", bytes_per_s=1e4, latency_s=0.5),)
    assert step_cost(found, Links(topology(4, links=slow), FREE.overheads), FREE).part_s("answer") == pytest.approx(
        0.5 + 0.64
    )
    with pytest.raises(ValueError, match="for 4 ranks, but the topology has 3"):
        step_cost(found, Links(topology(3), FREE.overheads), FREE)


def test_prefetching_hides_asking_beside_the_dense_part():
    found = expected_traffic(plan(TableLayout(kind="rows"), 2), Frequencies.uniform([1000]))
    network = Links(topology(2, delay=1e-3), FREE.overheads)
    plain = step_cost(found, network, FREE, dense_s=0.05)
    hidden = step_cost(found, network, FREE, dense_s=0.05, overlap=True)
    ahead_s = sum(plain.part_s(name) for name in ("prepare", "sizes", "request"))
    assert hidden.hidden_s == pytest.approx(ahead_s)
    assert plain.total_s - hidden.total_s == pytest.approx(ahead_s)
    assert step_cost(found, network, FREE, dense_s=1e-6, overlap=True).hidden_s == 1e-6


def test_slow_start_after_the_dense_part_is_not_hidden_by_prefetching():
    found = expected_traffic(plan(TableLayout(kind="rows"), 2, batch_size=4000), Frequencies.uniform([1000]))
    slowly = replace(FREE, overheads=replace(IDEAL, initial_window_bytes=14_480))
    network = [Links(topology(2, delay=0.05), each.overheads) for each in (FREE, slowly)]
    for overlap in (False, True):
        at_once, after = (
            step_cost(found, each, rates, dense_s=2.0, overlap=overlap)
            for each, rates in zip(network, (FREE, slowly), strict=True)
        )
        waits_s = 0.1 - 14_480 / 1e6  # of 31 kB, for the second of two windows
        assert after.part_s("gradients") - at_once.part_s("gradients") == pytest.approx(waits_s)
        assert after.part_s("request") == pytest.approx(at_once.part_s("request"))
        assert after.total_s - at_once.total_s == pytest.approx(after.wire_s - at_once.wire_s)
    assert step_cost(found, network[1], slowly).total_s == pytest.approx(step_cost(found, network[0], FREE).total_s)


def test_all_reduces_send_what_the_recorder_counts():
    assert sync_pairs(103, 4).sum(axis=1).tolist() == [2 * 3 * 103 // 4] * 4
    hosts = [range(2), range(2, 4), range(4, 6)]
    pairs = sync_pairs(90, 6, hosts)

    def body(place):
        recorded = RecordedComm(place.comm)
        hierarchical_comm(recorded, hosts).all_reduce(torch.zeros(90, dtype=torch.uint8)).wait()
        return recorded.sent_bytes

    assert pairs.sum(axis=1).tolist() == pliant.run_world(6, body)
    assert pairs[0, 2] == 2 * 2 * 90 // 3
    found = expected_traffic(plan(TableLayout(kind="replicated"), 6, hierarchical=True), Frequencies.uniform([1000]))
    with pytest.raises(ValueError, match="give the topology"):
        found.sent_bytes()
    assert found.sent_bytes(topology(3, ranks=2))[0] > found.sent_bytes(topology(3, ranks=2))[1]
    assert found.num_bytes[PHASES.index("sizes")].sum() == 0


def test_sums_of_rows_on_all_ranks_cost_less_by_hosts_and_less_often():
    layout = TableLayout(kind="replicated")
    network = Links(topology(2, ranks=4, delay=1e-3), FREE.overheads)

    def seconds(**settings):
        found = expected_traffic(plan(layout, 8, **settings), Frequencies.uniform([1000]))
        return step_cost(found, network, FREE).part_s("sync")

    assert seconds(hierarchical=True) < 0.6 * seconds()
    assert seconds(every=10) < 0.2 * seconds()


def test_memory_by_hand():
    frequencies = Frequencies.uniform([1000])
    rows = memory_per_rank(plan(TableLayout(kind="rows"), 4), frequencies)
    assert rows.shards.tolist() == [250 * 4 * 17] * 4
    home = memory_per_rank(plan(TableLayout(kind="table", homes=(2,), moves="sums"), 4, optimizer="adam"), frequencies)
    assert home.shards.tolist() == [0, 0, 1000 * 4 * (3 * 16 + 1), 0]
    hot = memory_per_rank(plan(TableLayout(kind="rows", num_hot=10), 4), frequencies)
    assert hot.replicas.tolist() == [10 * (68 + 64 + 9)] * 4
    assert hot.change.tolist() == [10 * (68 + 8)] * 4
    assert (hot.total >= hot.shards + hot.replicas).all()
    of_all = memory_per_rank(plan(TableLayout(kind="replicated"), 4), frequencies)
    assert of_all.shards.sum() == of_all.change.sum() == 0


def test_rates_are_found_again_from_steps():
    rng = np.random.default_rng(3)
    truth = Rates(
        overheads=Overheads(wire_factor=1.2, message_s=3e-4),
        id_s=9e-8,
        row_s=2e-7,
        number_s=1e-9,
        updated_s=5e-9,
        piece_s=8e-5,
        lookup_s=1e-3,
        step_s=4e-3,
    )
    features, wires, taken = [], [], []
    for _ in range(40):
        layout = [
            TableLayout(kind="rows", num_hot=int(rng.integers(0, 500))),
            TableLayout(kind="table", homes=(1,), moves="sums"),
            TableLayout(kind="rows", moves="sums", bits=16),
        ][int(rng.integers(3))]
        one = plan(layout, int(rng.integers(2, 5)), batch_size=int(10 ** rng.uniform(1, 4.5)))
        found = expected_traffic(
            one, Frequencies.zipf([1000], float(rng.uniform(0, 1.3)), pooling=int(rng.integers(1, 20)))
        )
        network = Links(topology(one.num_ranks), truth.overheads)
        cost = step_cost(found, network, truth)
        features.append(np.array(cost.features))
        wires.append(cost.wire_s / 1.2 * 1.05)
        taken.append(cost.total_s * float(rng.uniform(0.97, 1.03)))
    again = fit_rates(features, wires, taken, Rates())
    wire_s = np.array(wires) / 1.05 * again.overheads.wire_factor
    predicted = np.array(features) @ [*again.counts_s, again.lookup_s, again.overheads.message_s, again.step_s] + wire_s
    assert np.abs(predicted / taken - 1).max() < 0.08
    assert again.overheads.wire_factor == pytest.approx(1.2, abs=0.02)
    with pytest.raises(ValueError, match="0 steps have features, 1 times"):
        fit_rates([], [], [1.0], Rates())


def test_rates_are_records():
    rates = Rates(id_s=1e-7)
    assert from_json(Rates, to_json(rates)) == rates
    with pytest.raises(ValueError, match="times are at least 0"):
        Rates(row_s=-1)


def test_this_machine_can_be_measured():
    from pliant.recsys import measure_rates

    rates = measure_rates(limit_s=0.3)
    assert 1e-10 < rates.id_s + rates.row_s < 1e-4
    assert rates.overheads == Overheads()


def test_ranks_that_share_cores_wait_for_each_other():
    work = Rates(id_s=1e-6, row_s=0, number_s=0, coded_s=0, updated_s=0, piece_s=0, step_s=0)

    def prepare_s(layout, cores: float):
        found = expected_traffic(plan(layout, 4), Frequencies.uniform([1000]))
        return step_cost(found, Links(topology(4, num_cpus=cores), work.overheads), work).part_s("prepare")

    rows = TableLayout(kind="rows")
    assert prepare_s(rows, 2) == pytest.approx(2 * prepare_s(rows, 0))
    assert prepare_s(rows, 4) == prepare_s(rows, 0)
    assert prepare_s(rows, 16) == prepare_s(rows, 0)
