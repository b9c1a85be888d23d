"""Families of the registry's rows: each is a way that the engine has, with the optimizers that it is for."""

from dataclasses import replace

import pytest

from planner.examples import WORKLOAD
from pliant.algorithms import ALGORITHMS
from pliant.planner import FAMILIES, Gene, Genome, Quality, Space, all_of
from pliant.planner.families import family_name
from pliant.simulator import simulate
from pliant.spec import Host, SyncPlan, Topology, from_json, to_json

THREE = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(3)))
ROWS = {name: row for name, row in ALGORITHMS.items() if row.grid is not None}
LOCAL_STEPS = {
    *("streaming_diloco", "sparse_loco", "pulse_loco", "delayed_nesterov", "decoupled_diloco", "muloco", "no_loco"),
    *("des_loc", "mt_dao", "local_momentum"),
}
OPTIMIZERS = ("SGD", "AdamW", "Muon", "AdamW and Muon", "SlowAdamW", "OneBitAdam")


def fitting(gene):
    return [name for name in OPTIMIZERS if gene.fits_optimizer(name)]


def test_local_steps_are_families():
    assert ROWS.keys() >= LOCAL_STEPS | {"acco"}
    assert all(gene.between_steps for name in LOCAL_STEPS for gene in all_of(family_name(name)))


@pytest.mark.parametrize("name", ROWS)
def test_every_setting_is_a_plan_that_can_be_simulated_and_read_again(name):
    genes = all_of(family_name(name))
    for gene in genes:
        plan = Genome(gene).plan()
        assert from_json(SyncPlan, to_json(plan)) == plan
        assert from_json(Genome, to_json(Genome(gene))) == Genome(gene)
    for gene in (genes[0], genes[-1]):
        assert WORKLOAD.forward_s < simulate(Genome(gene).plan(), WORKLOAD, THREE).step_s < 60


@pytest.mark.parametrize("name", sorted(LOCAL_STEPS | {"acco"}))
def test_it_is_in_the_space_with_a_ratio_of_ones_own_and_the_optimizer_that_it_needs(name):
    gene = all_of(family_name(name))[-1]
    genes = replace(Genome(gene), cut="auto")
    for optimizer in OPTIMIZERS:
        quality = Quality(budget=1.2, optimizer=optimizer, ratios={gene: 1.1})
        inside = replace(genes, cut="auto" if optimizer in ("SGD", "AdamW") else "whole")
        assert (inside in Space(WORKLOAD, THREE, quality)) == (optimizer in fitting(gene))
        assert genes not in Space(WORKLOAD, THREE, Quality(budget=9, optimizer=optimizer, unmeasured=True))


def test_who_needs_which_optimizer():
    needs = {name: fitting(all_of(family_name(name))[0]) for name in ROWS}
    assert needs["muloco"] == ["Muon", "AdamW and Muon"]
    assert needs["mt_dao"] == ["SlowAdamW"]
    assert needs["local_momentum"] == ["SGD", "Muon", "AdamW and Muon"]
    assert "SGD" not in needs["des_loc"]
    some = {"muloco", "mt_dao", "des_loc", "local_momentum"}
    assert all(needs[name] == list(OPTIMIZERS) for name in ROWS.keys() - some)


def test_owners_that_step_with_estimates_are_not_exact_and_have_small_parameters_as_well():
    """Half of their gradients are of estimated weights, and the optimizer makes half as many steps."""
    acco = Gene("acco", {})
    assert not acco.exact
    assert not acco.lossy
    assert not Quality(ratios={acco: 1.0}).admits(acco)
    assert [str(rule.exchange) for rule in Genome(acco, cut="auto").plan().rules] == ["Acco"]


def test_texts_of_averages_are_algorithms():
    assert str(FAMILIES["muloco"](dict(all_of("muloco")[-1].settings)).averaging).startswith("ScatterGather(codec=int4")
