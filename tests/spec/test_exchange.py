"""Nodes of a plan: each checks itself, pairs of combinators hold each other or say why not, JSON and older plans."""

import itertools
import json
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pliant.algorithms import executor_for, parse
from pliant.simulator.traffic import TRAFFIC
from pliant.spec import (
    NODES,
    After,
    AllGather,
    AllReduce,
    BetweenHosts,
    BlockSparse,
    CodecSpec,
    CodedGossip,
    CompressedMomentum,
    Custom,
    DecoupledMomentum,
    Delayed,
    Every,
    Gossip,
    Host,
    LocalSteps,
    LowRank,
    MomentumDifferences,
    NeighborMean,
    OptimizerState,
    Outer,
    ParameterServer,
    Placement,
    ReduceScatter,
    RegionServers,
    Rule,
    ScatterGather,
    Selection,
    Sharded,
    ShardedOptimizer,
    SyncPlan,
    Target,
    Topology,
    VisibleChanges,
    WeightGather,
    from_json,
    to_json,
)
from tables import ALGORITHMS, BETWEEN_STEPS

SIGN, TOPK, DCT, INT4 = (CodecSpec(name=name) for name in ("sign", "topk", "dct", "int4"))
OLD = [json.loads(line) for line in (Path(__file__).parent / "plans_of_format_1.jsonl").read_text().splitlines()]
FALLING = Outer(momentum=0.9, momentum_points=((1.0, 0.5),), total_steps=100)
TARGET = Target(of="exposed_s", value=0.01)
LEAVES = (ScatterGather(codec=CodecSpec(name="qsgd", settings={"bits": 4})), ScatterGather(codec=SIGN, feedback="both"))
LEAVES += (AllGather(codec=TOPK), LowRank())
WRAPS = {
    "every": lambda inner: Every(steps=2, inner=inner),
    "delayed": lambda inner: Delayed(inner=inner),
    "after": lambda inner: After(steps=10, first=AllReduce(codec=CodecSpec(name="bf16")), then=inner),
    "hosts": lambda inner: BetweenHosts(inner=inner),
    "local": lambda inner: LocalSteps(period=8, averaging=inner),
}
REFUSED = {("every", "local"), ("delayed", "local"), ("local", "every"), ("local", "delayed")}


def survives(node):
    plan = SyncPlan(rules=(Rule(exchange=node),))
    assert from_json(SyncPlan, to_json(plan)) == plan
    assert executor_for(node).node == node
    return to_json(plan)


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_every_pair_of_combinators_is_a_plan_of_its_own_or_says_which_field_to_use(leaf):
    texts = set()
    for outer, inner in itertools.permutations(WRAPS, 2):
        if (outer, inner) in REFUSED:
            with pytest.raises(
                ValueError, match=r"invalid (Every|Delayed|LocalSteps): .*; use the (period|delay_steps)"
            ):
                WRAPS[outer](WRAPS[inner](leaf))
        else:
            texts.add(survives(WRAPS[outer](WRAPS[inner](leaf))))
    assert len(texts) == 20 - len(REFUSED)


@given(st.lists(st.sampled_from(sorted(WRAPS)), max_size=5), st.sampled_from(LEAVES))
def test_whatever_is_nested_survives_or_is_refused_with_a_sentence(names, leaf):
    node = leaf
    for name in names:
        try:
            node = WRAPS[name](node)
        except ValueError as error:
            told = str(error)
            break
    else:
        told = ""
    if told:
        assert told.startswith("invalid ")
        return
    survives(node)
    assert node.kind == ("weights" if "local" in names else "gradients")
    assert node.levels == (("host",) if "hosts" in names else ())
    assert node.timing.period == (8 if "local" in names else 2 if "every" in names else 1)


def test_executor_simulator_and_json_know_the_same_nodes():
    """Each node says which executor it has, and what it moves, unless the simulator knows that."""
    nodes = set(NODES.values())
    for kind in nodes:
        module, _, name = kind.made_by.partition(":")
        assert callable(getattr(import_module(f"pliant.algorithms.{module}"), name)), kind
    assert {kind for kind in nodes if not hasattr(kind, "moves")} == set(TRAFFIC)


@pytest.mark.parametrize("name", sorted(ALGORITHMS | BETWEEN_STEPS))
def test_every_algorithm_survives(name):
    survives((ALGORITHMS | BETWEEN_STEPS)[name])


SHARDED = [
    Sharded(gradients=ReduceScatter()),
    Sharded(gradients=ReduceScatter(codec=INT4, residual="int8"), weights=WeightGather(codec=INT4, regather=False)),
    Sharded(gradients=ReduceScatter(codec=INT4, rotated=True), limit_bytes=1 << 30),
    Sharded(weights=WeightGather(codec=SIGN, differences=True, regather=False)),
    Sharded(replicas=LocalSteps(period=8, averaging=ScatterGather(codec=SIGN, feedback="both"))),
    Sharded(replicas=LocalSteps(period=8, states=(OptimizerState(name="exp_avg", period=24),))),
]


def test_settings_of_codecs_are_printed_with_all_their_digits():
    for settings in ({"ratio": 1 / 130}, {"ratio": 0.1, "block": 1 << 20}):
        node = AllGather(codec=CodecSpec(name="blocktopk", settings=settings))
        assert parse(str(node)) == node


@pytest.mark.parametrize("node", SHARDED, ids=str)
def test_nodes_of_sharded_models_survive_json_and_text(node):
    survives(node)
    assert parse(str(node)) == node
    replicas = node.replicas
    assert node.kind == ("gradients" if replicas is None else replicas.kind)
    assert node.timing == (AllReduce() if replicas is None else replicas).timing
    assert node.exchanges_weights == (replicas is not None)


NONSENSE = [
    (lambda: Sharded(replicas=ShardedOptimizer()), "replicas must hold all of their shard alike"),
    (lambda: Sharded(replicas=Sharded(gradients=ReduceScatter())), "no node inside has owners or is Sharded"),
    (lambda: Sharded(gradients=ReduceScatter(), limit_bytes=-1), "limit_bytes must be at least 0, got -1"),
    (lambda: ReduceScatter(codec=TOPK), "invalid ReduceScatter: codec must be one of bf16.*sigma2, got topk"),
    (lambda: ReduceScatter(codec=SIGN), "residual must be 'full' or 'int8' with the biased codec sign, got 'none'"),
    (lambda: ReduceScatter(residual="full"), "codec must be given where something is lost, got residual 'full'"),
    (lambda: WeightGather(codec=TOPK), "invalid WeightGather: codec must be one of"),
    (lambda: WeightGather(differences=True, regather=False), "codec must be given for differences"),
    (lambda: WeightGather(codec=SIGN), "differences must be True with the biased codec sign, got False"),
    (lambda: WeightGather(codec=INT4, differences=True), "regather must be False with differences"),
    (lambda: CodecSpec(name="zip"), "there is no codec 'zip'; there are bf16"),
    (lambda: CodecSpec(name="int4", settings={"bits": 4}), "the codec 'int4' has no setting 'bits'; it has block"),
    (lambda: CodecSpec(name="qsgd", settings={"bits": 2.5}), "has bits 2.5, but that is a count"),
    (lambda: AllReduce(codec=TOPK), "invalid AllReduce: codec must be one of bf16, fp16, randomk, got topk"),
    (
        lambda: AllReduce(codec=CodecSpec(name="bf16"), few_rounds=True),
        "invalid AllReduce: codec must be None with few_rounds, which is for exact means, got bf16",
    ),
    (lambda: ScatterGather(codec=TOPK), "invalid ScatterGather: codec must be one of .*sigma2, got topk"),
    (lambda: ScatterGather(codec=SIGN), "feedback must be 'worker' or 'both' with the biased codec sign"),
    (lambda: ScatterGather(codec=INT4, chunk_bytes=10), "chunk_bytes must be at least 4096, got 10"),
    (lambda: AllGather(codec=SIGN), "codec must be one of topk, blocktopk, chunktopk, got sign"),
    (lambda: AllGather(codec=TOPK, momentum=1.5), "momentum must be at least 0 and below 1, got 1.5"),
    (lambda: AllGather(codec=TOPK, ramp_steps=-1), "ramp_steps must be at least 0, got -1"),
    (lambda: BlockSparse(momentum=-0.1), "invalid BlockSparse: momentum must be"),
    (lambda: LowRank(rank=0), "rank must be at least 1, got 0"),
    (lambda: DecoupledMomentum(codec=TOPK), "codec must be one of dct, got topk"),
    (lambda: DecoupledMomentum(momentum=0), "momentum must be above 0 and below 1, got 0"),
    (lambda: CompressedMomentum(beta=1, warmup_steps=3), "beta must be above 0 and below 1, got 1"),
    (lambda: CompressedMomentum(beta=0.9, warmup_steps=0), "warmup_steps must be at least 1"),
    (lambda: ScatterGather(codec=INT4, decay=0.9), "decay must be 1 without feedback.*got 0.9; use feedback='both'"),
    (
        lambda: AllGather(codec=CodecSpec(name="chunktopk"), momentum=0.9),
        "momentum must be 0 with chunktopk, whose values are rounded.*use topk or blocktopk",
    ),
    (
        lambda: Rule(exchange=Every(steps=2, inner=VisibleChanges(assumed_density=0.1))),
        "invalid Rule: .*as the averaging of LocalSteps",
    ),
    (lambda: Rule(exchange=VisibleChanges(assumed_density=0.1)), "invalid Rule: VisibleChanges compares changes with"),
    (
        lambda: Rule(exchange=LocalSteps(period=2, averaging=BetweenHosts(inner=VisibleChanges(assumed_density=0.1)))),
        "invalid Rule: .*which LocalSteps alone keeps",
    ),
    (lambda: Rule(exchange=NeighborMean(pull=1.0)), "invalid Rule: NeighborMean compares changes .* no_loco"),
    (lambda: NeighborMean(pull=0.0), "invalid NeighborMean: pull must be above 0 and at most 1, got 0"),
    (
        lambda: LocalSteps(period=2, pace="free", averaging=NeighborMean(pull=1.0)),
        "NeighborMean needs ranks in lockstep that all count alike",
    ),
    (
        lambda: LocalSteps(period=2, weighted=True, averaging=NeighborMean(pull=1.0)),
        "NeighborMean needs ranks in lockstep that all count alike",
    ),
    (
        lambda: OptimizerState(name="exp_avg", period=2, averaging=NeighborMean(pull=1.0)),
        "averaging of 'exp_avg' must give the mean of what all ranks have",
    ),
    (
        lambda: CompressedMomentum(
            beta=0.9, warmup_steps=3, averaging=ScatterGather(codec=INT4, feedback="both", decay=0.9)
        ),
        "averaging must have decay 1, .*got 0.9",
    ),
    (
        lambda: CompressedMomentum(beta=0.9, warmup_steps=3, averaging=ScatterGather(codec=INT4)),
        "averaging must have feedback 'both', got 'none'",
    ),
    (
        lambda: MomentumDifferences(averaging=Gossip()),
        "averaging must be AllReduce, ScatterGather, AllGather or LowRank, .* got Gossip",
    ),
    (
        lambda: MomentumDifferences(averaging=ScatterGather(codec=SIGN, feedback="worker")),
        "averaging must be exact or keep all that its codec loses, .*; use feedback='both', or no codec",
    ),
    (lambda: MomentumDifferences(averaging=AllReduce(codec=CodecSpec(name="bf16"))), "must be exact or keep all"),
    (
        lambda: MomentumDifferences(averaging=ScatterGather(codec=INT4, feedback="both", decay=0.9)),
        "averaging must have decay 1, no momentum and no target, got",
    ),
    (lambda: MomentumDifferences(averaging=AllGather(codec=TOPK, momentum=0.9)), "no momentum and no target, got"),
    (lambda: MomentumDifferences(averaging=AllGather(codec=TOPK, target=TARGET)), "no momentum and no target, got"),
    (lambda: MomentumDifferences(averaging=LowRank(momentum=0.9)), "no momentum and no target, got LowRank"),
    (lambda: MomentumDifferences(averaging=AllReduce(), momentum=1), "momentum must be above 0 and below 1, got 1"),
    (lambda: LowRank(momentum=1), "momentum must be at least 0 and below 1, got 1"),
    (lambda: Delayed(inner=LowRank(momentum=0.9)), "LowRank must exchange its momentum in every step"),
    (lambda: LocalSteps(period=2, averaging=LowRank(momentum=0.9)), "averaging must give a mean of changes at once"),
    (
        lambda: After(steps=1, first=AllReduce(), then=MomentumDifferences(averaging=AllReduce())),
        "then has a momentum, which is followed from the first step on, got MomentumDifferences",
    ),
    (lambda: ShardedOptimizer(codec=SIGN), "codec must be unbiased, since owners keep no residuals, got sign"),
    (lambda: ShardedOptimizer(codec=TOPK), "invalid ShardedOptimizer: codec must be one of"),
    (lambda: Placement(bandwidths=(1.0, 0.0)), "invalid Placement: bandwidths must be above 0"),
    (lambda: ParameterServer(staleness=-1), "staleness must be at least 0, got -1"),
    (lambda: Custom(name="mine", period=2), "period must be 1 where gradients .* use Every"),
    (lambda: Gossip(period=0), "invalid Gossip: period must be at least 1, got 0"),
    (lambda: Gossip(delay_steps=2), "delay_steps must be from 0 to the period of 1, got 2"),
    (lambda: Gossip(pace="free"), "delay_steps must be 0 at a free pace"),
    (lambda: CodedGossip(codec=DCT), "invalid CodedGossip: codec must be one of"),
    (lambda: CodedGossip(gamma=2), "gamma must be from 0 to 1, got 2"),
    (lambda: LocalSteps(period=2, fragments=3), "fragments must be from 1 to the period of 2"),
    (lambda: LocalSteps(period=2, pace="free", quorum=0), "quorum must be a number of ranks, .* got 0, .* use -1"),
    (lambda: LocalSteps(period=2, quorum=3), "quorum must be left out in lockstep, .* got 3; use pace='free'"),
    (lambda: LocalSteps(period=2, pace="free", grace_s=1), "grace_s must be 0 without a quorum, .* got 1; set quorum"),
    (lambda: LocalSteps(period=2, pace="free", quorum=1, grace_s=-1), "grace_s must be at least 0, got -1"),
    (lambda: LocalSteps(period=2, stretch=-1), "stretch must be at least 0, got -1"),
    (lambda: LocalSteps(period=2, averaging=Gossip()), "averaging must give a mean of changes at once, which Gossip"),
    (lambda: LocalSteps(period=2, averaging=AllGather(codec=TOPK, target=TARGET)), "averaging must have no target"),
    (
        lambda: LocalSteps(period=32, states=(OptimizerState(name="m", period=48),)),
        "the period of 'm' must be a multiple or a divisor of the weights' 32 steps, .* got 48",
    ),
    (
        lambda: LocalSteps(period=2, pace="free", states=(OptimizerState(name="m", period=2),)),
        "states must be empty at a free pace, .* got m; use pace='lockstep'",
    ),
    (lambda: LocalSteps(period=2, states=(OptimizerState(name="m", period=2),) * 2), "each state once, got m, m"),
    (lambda: OptimizerState(name="m", period=0), "invalid OptimizerState: period must be at least 1, got 0"),
    (
        lambda: OptimizerState(name="m", period=2, averaging=Gossip()),
        "averaging of 'm' must give the mean .* which Gossip does not",
    ),
    (
        lambda: OptimizerState(name="m", period=2, averaging=Custom(name="mine")),
        "by a node of Pliant's own, which Custom does not",
    ),
    (
        lambda: OptimizerState(name="m", period=2, averaging=ScatterGather(codec=SIGN, feedback="both")),
        "must keep nothing from one mean to the next, but ScatterGather keeps a residual",
    ),
    (
        lambda: OptimizerState(name="m", period=2, averaging=AllReduce(schedule="auto")),
        "averaging of 'm' must have the schedule 'ring', got 'auto'",
    ),
    (
        lambda: OptimizerState(name="exp_avg_sq", period=2, averaging=AllReduce(codec=CodecSpec(name="fp16"))),
        "averaging of 'exp_avg_sq' must not turn small numbers into 0 or below, .* fp16 does; use float32 or bfloat16",
    ),
    (
        lambda: OptimizerState(name="exp_avg_sq", period=2, averaging=ScatterGather(codec=CodecSpec(name="minmax8"))),
        "since the optimizer divides by it, but the codec minmax8 does",
    ),
    (
        lambda: OptimizerState(name="row_var", period=2, averaging=AllReduce(codec=CodecSpec(name="fp16"))),
        "averaging of 'row_var' must not turn small numbers into 0",
    ),
    (lambda: RegionServers(period=0), "invalid RegionServers: period must be at least 1, got 0"),
    (lambda: RegionServers(region_ranks=0), "region_ranks must be at least 1, got 0"),
    (lambda: RegionServers(arrivals=0), "arrivals must be at least 1, got 0"),
    (lambda: RegionServers(pull=0.0), "pull must be above 0 and at most 1, got 0"),
    (lambda: RegionServers(region=FALLING), "region must have no points, .* or use diloco, whose ranks keep step"),
    (lambda: RegionServers(world=FALLING), "world must have no points, since ranks are at steps of their own"),
    (
        lambda: LocalSteps(period=2, averaging=RegionServers()),
        "averaging must give a mean of changes at once, which Reg",
    ),
    (lambda: Every(steps=2, inner=RegionServers()), "RegionServers exchanges weights; use the period of that node"),
    (lambda: BetweenHosts(inner=RegionServers()), "inner must not meet in pairs at a free pace, got RegionServers"),
    (lambda: Outer(lr=0), "invalid Outer: lr must be above 0, got 0"),
    (lambda: Outer(lr_points=((0.5, 0.1),)), "points are shares of the training, whose length is not known; set total"),
    (
        lambda: Outer(lr_points=((0.5, 0.1), (0.5, 1)), total_steps=9),
        "lr_points must be at shares .* that rise, above 0",
    ),
    (lambda: Outer(momentum_points=((1.5, 0.1),), total_steps=9), "momentum_points must be at shares .* up to 1, got"),
    (lambda: Outer(lr_points=((1, 0),), total_steps=9), "lr_points must have values above 0 and finite, got"),
    (lambda: Outer(momentum_points=((1, 1),), total_steps=9), "must have values at least 0 and below 1, got"),
    (
        lambda: Outer(every=2),
        "every counts rounds between steps of the momentum, got 2 without a momentum; set one, or every=1",
    ),
    (lambda: LocalSteps(period=2, pace="free", outer=FALLING), "no points at a free pace, where ranks are at steps of"),
    (
        lambda: After(steps=2, first=AllReduce(), then=LocalSteps(period=2), gathers_momentum=True),
        "gathers_momentum needs local steps in lockstep with an outer momentum, got .* leave gathers_momentum out",
    ),
    (lambda: Every(steps=0, inner=AllReduce()), "invalid Every: steps must be at least 1, got 0"),
    (lambda: Every(steps=2, inner=Gossip()), "Gossip exchanges weights; use the period of that node"),
    (lambda: Every(steps=2, inner=Every(steps=2, inner=AllReduce())), "has a Every already"),
    (
        lambda: Every(steps=2, inner=CompressedMomentum(beta=0.9, warmup_steps=3)),
        "CompressedMomentum must exchange its momentum in every step",
    ),
    (lambda: Delayed(inner=AllReduce(), compensation=-1), "compensation must be at least 0, got -1"),
    (lambda: Delayed(inner=AllReduce(), lookahead=-1), "lookahead must be at least 0, got -1"),
    (lambda: After(steps=0, first=AllReduce(), then=AllReduce()), "invalid After: steps must be at least 1"),
    (lambda: After(steps=1, first=Gossip(), then=AllReduce()), "first must exchange gradients"),
    (
        lambda: After(steps=1, first=AllReduce(), then=CompressedMomentum(beta=0.9, warmup_steps=3)),
        "then has a momentum, which is followed from the first step on.*CompressedMomentum has warmup_steps of its own",
    ),
    (
        lambda: After(steps=1, first=AllReduce(), then=AllGather(codec=TOPK, target=TARGET)),
        "then must have no target",
    ),
    (
        lambda: BetweenHosts(
            inner=BlockSparse(
                selection=Selection(agreement="local", value_bits=16, topology=Topology(hosts=(Host(name="a"),)))
            )
        ),
        "inner must have no topology, which is of all ranks",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), NONSENSE)
def test_nonsense_is_refused_with_node_field_and_what_was_given(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_rule_holds_a_node():
    with pytest.raises(ValueError, match="invalid Rule: exchange must be a node of a plan, got 'qsgd'"):
        Rule(exchange="qsgd")


def test_settings_that_have_their_default_are_the_same_codec():
    assert CodecSpec(name="qsgd", settings={"block": 512, "bits": 4}) == CodecSpec(name="qsgd", settings={"bits": 4})
    assert str(CodecSpec(name="qsgd", settings={"block": 512})) == "qsgd"


# - Plans of format 1


@pytest.mark.parametrize("row", OLD, ids=lambda row: row["exchanges"][-1][:60])
def test_plans_of_format_1_mean_what_they_meant(row):
    """Their times, simulated before the change of format and after it, were equal to 1e-12."""
    plan = from_json(SyncPlan, json.dumps(row["plan"]))
    assert [str(rule.exchange) for rule in plan.rules] == row["exchanges"]
    assert plan.order == row["order"]
    assert (plan.name, plan.bucket_bytes) == (row["plan"]["name"], row["plan"]["bucket_bytes"])
    assert len(to_json(plan)) < len(json.dumps(row["plan"]))


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"momentum": 0.9}, "is AllReduce, where momentum means nothing, but it is 0.9; leave it out"),
        ({"codec": {"name": "bf16", "settings": {}}, "feedback": "worker"}, "where feedback means nothing"),
        ({"gamma": 0.5}, "where gamma means nothing"),
        ({"before": {}, "until_step": 0}, "invalid After: steps must be at least 1"),
        ({"collective": "scatter_gather"}, "needs a codec for scatter_gather"),
        ({"collective": "low_rank"}, "needs the codec 'rank' for low_rank, but has None"),
        ({"collective": "gossip"}, "gossip averages weights, but this choice of format 1 exchanges a gradient"),
        ({"what": "everything"}, "choice.what must be one of gradient, momentum"),
        ({"colour": 1}, "choice has no field 'colour'"),
        ({"codec": {"name": "zip", "settings": {}}}, "no codec 'zip'"),
    ],
)
def test_nonsense_in_plans_of_format_1_is_refused(choice, sentence):
    text = json.dumps({"pliant": "SyncPlan", "format": 1, "rules": [{"choice": choice}]})
    with pytest.raises(ValueError, match=sentence):
        from_json(SyncPlan, text)


def test_a_plan_of_format_1_has_one_order():
    rules = [{"match": {"pattern": "a"}, "choice": {"order": "at_end"}}, {"choice": {}}]
    with pytest.raises(ValueError, match="a plan has one order"):
        from_json(SyncPlan, json.dumps({"pliant": "SyncPlan", "format": 1, "rules": rules}))
