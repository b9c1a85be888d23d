"""Plans for sharded models: only what fits the mesh is searched, and nothing that nobody has measured is admitted."""

import random

import pytest

import pliant
from pliant.planner import FAMILIES, SHARDED_BASELINES, WORKLOADS, Gene, Quality, Space, divided
from pliant.simulator import simulate
from pliant.spec import Host, Sharded, Topology, from_json, to_json

NUM_RANKS = 4
HOSTS = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(4)))


def gpt(num_shards: int):
    return divided(WORKLOADS["gpt2"](), num_shards)


def test_blocks_are_groups_and_survive_json():
    workload = gpt(4)
    assert {t.group for t in workload.tensors} >= {"the model itself"}
    assert len({t.group for t in workload.tensors}) > 10
    assert from_json(type(workload), to_json(workload)) == workload
    with pytest.raises(ValueError, match="divided among 0 ranks"):
        divided(workload, 0)


@pytest.mark.parametrize("budget", [1.0, 1.1, 2.0])
def test_without_replicas_only_settings_of_shards_are_searched(budget):
    space, rng = Space(gpt(NUM_RANKS), HOSTS, Quality(budget=budget)), random.Random(0)
    for genes in [space.sample(rng) for _ in range(40)]:
        assert all(FAMILIES[gene.family].sharded for gene in genes.genes)
        for rule in genes.plan().rules:
            node = rule.exchange
            assert isinstance(node, Sharded)
            assert budget > 1 or node.weights is None or node.weights.codec is None
            assert budget > 1 or node.gradients is None or node.gradients.residual == "none"


@pytest.mark.parametrize("weights", ["int8", "differences"])
def test_weights_in_few_bits_are_admitted_where_they_were_measured(weights):
    four, one = (Gene("coded_shards", {"bits": bits, "residual": "full", "weights": weights}) for bits in (4, 1))
    assert Quality(budget=1.1).admits(four)
    assert not Quality(budget=1.1, optimizer="AdamW").admits(four)
    assert not Quality(budget=9.0).admits(one)


def test_a_ratio_of_ones_own_admits_what_was_measured_and_what_is_milder():
    ours = {Gene("unbiased_shards", {"bits": 4, "weights": "differences"}): 1.02}
    quality = Quality(budget=1.05, ratios=ours)
    assert quality.admits(Gene("unbiased_shards", {"bits": 8, "weights": "int8"}))
    assert not quality.admits(Gene("coded_shards", {"bits": 1, "residual": "full", "weights": "differences"}))


def test_among_replicas_a_plain_plan_is_theirs():
    space = Space(gpt(2), HOSTS, Quality(budget=2.0, unmeasured=True))
    families = {gene.family for genes in (space.sample(random.Random(k)) for k in range(60)) for gene in genes.genes}
    assert {"exact", "diloco"} <= families
    assert not families & {"owner", "tasc", "exact_shards"}
    plain = simulate(pliant.partition({"*": pliant.onebit()}), gpt(2), HOSTS)
    written = simulate(pliant.partition({"*": pliant.sharded(replicas="onebit")}), gpt(2), HOSTS)
    assert plain.step_s == written.step_s


def test_all_settings_are_simulated_and_bytes_fall_with_bits():
    sent = {}
    for name, genes in SHARDED_BASELINES.items():
        sent[name] = max(simulate(genes.plan(), gpt(NUM_RANKS), HOSTS).sent_bytes)
    assert sent["fsdp"] > sent["fsdp-pairwise"] > sent["fsdp-once"] > sent["fsdp-bf16"] > sent["fsdp-int4"]
    assert sent["sdp4bit"] < sent["zero++"] < sent["loco"]
    assert min(sent, key=sent.get) == "fsdp-onebit"


def test_a_plain_plan_for_a_model_without_replicas_is_refused():
    with pytest.raises(ValueError, match=r"no two hold the same.*write it as sharded"):
        simulate(pliant.partition({"*": pliant.onebit()}), gpt(NUM_RANKS), HOSTS)
    plan = pliant.partition({"*": pliant.sharded(replicas="onebit")})
    with pytest.raises(ValueError, match="4 ranks cannot hold copies of a model that 3 ranks share"):
        simulate(plan, gpt(3), HOSTS)
