"""The space is made of the nodes: what stands beside a field is tried, what a node refuses is not."""

import random
from dataclasses import dataclass, replace
from typing import Annotated

import pytest
from hypothesis import given, strategies as st

import pliant
from planner.examples import FLAT, TWO_A_HOST, WORKLOAD
from planner.made_up_ratios import table
from pliant.netmodel import Overheads
from pliant.planner import FAMILIES, Gene, Genome, LeastTimes, Quality, Space, all_of, named_genomes, search_predicted
from pliant.planner.compositions import composition, searched_genes
from pliant.planner.families import NAMED_FAMILIES
from pliant.planner.node_families import NodeFamily, tried_values
from pliant.simulator import simulate
from pliant.spec import Exchange, Host, Rack, Topology, from_json, to_json
from pliant.spec.ranges import Count, Range, Tried

__all__ = ["table"]

INT4 = "ScatterGather(codec=int4, feedback='both')"
LINKED = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(4)))


@dataclass(frozen=True, kw_only=True)
class Planted(Exchange):
    width: Annotated[Count, Tried((4, 2, 0))]
    length: Annotated[float, Range(low=0)] = 1.0


def local(averaging: str, period: int = 8) -> Gene:
    settings = {"period": period, "averaging": averaging, "outer": "Outer()", "fragments": 1, "delay_steps": 0}
    return Gene("LocalSteps", {**settings, "pace": "lockstep"})


def test_a_field_is_tried_with_what_stands_beside_it_and_no_node_is_made_that_refuses_it():
    family = NodeFamily(Planted)
    assert tried_values(Planted) == {"width": (4, 2, 0)}
    assert family({"width": 2}) == Planted(width=2)
    with pytest.raises(ValueError, match="width must be at least 1"):
        family({"width": 0})
    with pytest.raises(ValueError, match="not tried with width 3"):
        family({"width": 3})


@pytest.mark.parametrize("name", ["Delayed", "Every", "BlockSparse", "ParameterServer"])
def test_genes_of_nodes_are_valid_new_and_survive_json(name):
    named = {gene.exchange for family in NAMED_FAMILIES for gene in all_of(family)}
    genes = all_of(name)
    assert len(genes) > 10
    assert all(type(gene.exchange).__name__ == name and gene.exchange not in named for gene in genes)
    assert from_json(Genome, to_json(Genome(genes[-1]))) == Genome(genes[-1])


def test_asynchrony_periods_delays_and_codecs_inside_are_reached():
    texts = {str(FAMILIES["LocalSteps"](gene.settings)) for gene in searched_genes() if gene.family == "LocalSteps"}
    assert f"LocalSteps(period=8, averaging={INT4})" in texts
    assert any(gene.exchange.timing.pace == "free" for gene in all_of("Gossip"))
    assert Gene("ParameterServer", {"codec": "int4"}).exchange.staleness_bound == 1


def test_the_ratio_of_a_node_around_another_is_the_product_of_both(table):
    table()
    gene, quality = local(INT4), Quality(budget=1.12)
    assert [part.summary for part in composition(gene)] == ["local(every=8)", "fed_back(bits=4)"]
    assert quality.ratio_of(gene) == pytest.approx(1.07 * 1.04)
    assert quality.admits(gene)
    assert not Quality(budget=1.11).admits(gene)
    assert not Quality(budget=9, optimizer="AdamW").admits(gene)
    assert not Quality(budget=9, rejected=frozenset({Gene("fed_back", {"bits": 4})})).admits(gene)
    assert Quality(budget=1.11, ratios={gene: 1.05}).admits(gene)
    assert Quality(budget=9).ratio_of(local("ScatterGather(codec=natural)")) is None


def test_small_parameters_may_be_exchanged_otherwise_than_large_ones(table):
    table()
    space = Space(WORKLOAD, FLAT, Quality(budget=1.6), combined=True)
    assert space.sizes == (1 << 16,)  # between those of the convolutions and of the linear layers
    mixed = Genome(Gene("low_rank", {"rank": 4}), sizes=((1 << 16, Gene("owner", {})),), cut="auto")
    assert mixed in space
    chosen = [str(mixed.plan().exchange_for("", "", numel)) for numel in (100, 1 << 15, 1 << 17)]
    assert chosen == ["AllReduce(few_rounds=True)", "ShardedOptimizer", "LowRank"]
    assert from_json(Genome, to_json(mixed)) == mixed
    rng = random.Random(0)
    assert any(space.mutate(mixed, rng).sizes == () for _ in range(200))
    assert any(genes.sizes for genes in (space.sample(rng) for _ in range(100)))


def test_racks_are_searched_where_there_are_racks():
    names = [host.name for host in LINKED.hosts]
    racks = tuple(Rack(name=f"r{k}", hosts=tuple(names[2 * k : 2 * k + 2])) for k in range(2))
    gene = Gene("BetweenRacks", {"inner": INT4})
    assert Genome(gene) not in Space(WORKLOAD, LINKED, Quality(budget=1.6), combined=True)
    racked = Topology(hosts=LINKED.hosts, racks=racks)
    assert Genome(gene) in Space(WORKLOAD, racked, Quality(budget=1.6), combined=True)


def test_combinations_are_drawn_only_where_they_are_asked_for():
    rng, drawn = random.Random(0), dict[bool, list[Genome]]()
    for combined in (False, True):
        space = Space(WORKLOAD, FLAT, Quality(budget=1.6), combined=combined)
        drawn[combined] = [space.sample(rng) for _ in range(60)]
        drawn[combined] += [space.mutate(genes, rng) for genes in drawn[combined]]
    named = {key: all(g.family in NAMED_FAMILIES for genes in each for g in genes.genes) for key, each in drawn.items()}
    assert named == {False: True, True: False}
    assert not any(genes.sizes for genes in drawn[False])


@given(st.integers(0, 10**6), st.sampled_from([LINKED, FLAT, TWO_A_HOST]))
def test_no_step_is_simulated_below_its_least_time(seed, topology):
    space = Space(WORKLOAD, topology, Quality(budget=10), combined=True)
    genes = space.sample(random.Random(seed))
    least_s = LeastTimes(WORKLOAD, topology, Overheads())(genes)
    assert 0 < least_s <= simulate(genes.plan(), WORKLOAD, topology).step_s * (1 + 1e-9)


def test_the_least_time_of_a_sum_is_that_of_its_bytes():
    numel = WORKLOAD.numel
    plain, half = (LeastTimes(WORKLOAD, LINKED, Overheads())(Genome(Gene("exact", {"bits": b}))) for b in (32, 16))
    assert plain == pytest.approx(2 * 3 * 4 * numel / 4e7)
    assert half == pytest.approx(max(plain / 2, 0.3))


HALF = replace(WORKLOAD, tensors=tuple(replace(tensor, dtype="bfloat16") for tensor in WORKLOAD.tensors))
IN_ROWS = replace(
    WORKLOAD, tensors=tuple(replace(t, sparse_rows=2.0 if t.layer == "Linear" else 0.0) for t in WORKLOAD.tensors)
)


@pytest.mark.parametrize("workload", [HALF, IN_ROWS])
def test_least_times_know_gradients_that_are_shorter_than_32_bits_or_come_as_rows(workload):
    least = LeastTimes(workload, LINKED, Overheads())
    for bits in (32, 16):
        genes = Genome(Gene("exact", {"bits": bits}), bucket_bytes=25 << 20)
        assert least(genes) <= simulate(genes.plan(), workload, LINKED).step_s * (1 + 1e-9)


def test_the_least_time_at_a_free_pace_is_that_of_the_fastest_rank():
    workload = replace(WORKLOAD, rank_factors=(0.5, 1.0, 1.0, 1.0))
    free = next(gene for gene in searched_genes() if gene.exchange.timing.pace == "free")
    step_s = simulate(Genome(free).plan(), workload, FLAT, slowdown=workload.rank_factors).step_s
    assert LeastTimes(workload, FLAT, Overheads())(Genome(free)) <= step_s


def test_plans_that_cannot_be_better_are_not_predicted_and_the_best_is_the_same():
    space, asked = Space(WORKLOAD, LINKED, Quality(budget=1.6), combined=True), {True: 0, False: 0}
    best = {}
    for bounded in (True, False):
        least = LeastTimes(WORKLOAD, LINKED, Overheads()) if bounded else lambda _: 0.0

        def step_s(plans, bounded=bounded):
            asked[bounded] += len(plans)
            return [simulate(g.plan(), WORKLOAD, LINKED).step_s for g in plans]

        best[bounded] = search_predicted(space, step_s, space.baselines, 20, 0, least_s=least)[0][1]
    assert asked[True] < asked[False]
    assert best[True] == pytest.approx(best[False], rel=0.05)


def test_names_that_say_enough_are_among_the_seeds():
    assert {"bf16", "powersgd", "local_sgd"} <= set(named_genomes())
    assert named_genomes()["int4"].plan().rules[-1].exchange == pliant.int4()


def test_whoever_needs_equal_weights_is_offered_nothing_that_changes_them():
    genes = [gene for name in FAMILIES for gene in all_of(name)]
    free, equal = Quality(budget=9, unmeasured=True), Quality(budget=9, unmeasured=True, equal_weights=True)
    admitted = [gene for gene in genes if equal.admits(gene)]
    assert admitted == [gene for gene in genes if free.admits(gene) and not gene.changes_state]
    assert 0 < len(admitted) < sum(map(free.admits, genes))
