"""Words for sharded models: texts, algorithms and codecs mean the same, and a plain name means what a mesh allows."""

import pytest

import pliant
from pliant.algorithms.sharding import for_shards
from pliant.codecs import MinMax8, Qsgd
from pliant.spec import CodecSpec, ReduceScatter, Rule, Sharded, SyncPlan, WeightGather

INT4 = CodecSpec(name="int4")


def resolved(node, *, has_replicas):
    return for_shards(SyncPlan(rules=(Rule(exchange=node),)), has_replicas=has_replicas).rules[0].exchange


@pytest.mark.parametrize(
    ("words", "node"),
    [
        ({"gradients": "allreduce"}, Sharded(gradients=ReduceScatter())),
        ({"gradients": "int4"}, Sharded(gradients=ReduceScatter(codec=INT4, residual="full"))),
        (
            {"gradients": pliant.int4(), "residual": "int8"},
            Sharded(gradients=ReduceScatter(codec=INT4, residual="int8")),
        ),
        ({"gradients": "bytegrad"}, Sharded(gradients=ReduceScatter(codec=CodecSpec(name="minmax8")))),
        ({"weights": "bytegrad"}, Sharded(weights=WeightGather(codec=CodecSpec(name="minmax8")))),
        (
            {"weights": "bf16", "regather": False},
            Sharded(weights=WeightGather(codec=CodecSpec(name="bf16"), regather=False)),
        ),
        (
            {"weights": pliant.differences(Qsgd(bits=4))},
            Sharded(
                weights=WeightGather(
                    codec=CodecSpec(name="qsgd", settings={"bits": 4}), differences=True, regather=False
                )
            ),
        ),
        ({"replicas": "diloco(8)"}, Sharded(replicas=pliant.diloco(8))),
    ],
)
def test_words_become_a_node(words, node):
    assert pliant.sharded(**words) == node
    assert pliant.parse(str(node)) == node


def test_a_residual_of_nothing_rounds_without_bias_what_was_rotated():
    node = pliant.sharded(gradients="int4", residual="none").gradients
    assert node.rotated
    assert node.codec == CodecSpec(name="qsgd", settings={"bits": 4, "block": 64})
    assert node.codec.facts.header_bytes == INT4.facts.header_bytes


def test_a_plain_algorithm_is_what_the_mesh_allows():
    assert resolved(pliant.onebit(), has_replicas=True) == Sharded(replicas=pliant.onebit())
    alone = resolved(pliant.onebit(), has_replicas=False)
    assert alone == Sharded(
        gradients=ReduceScatter(codec=CodecSpec(name="sign"), residual="full"), weights=WeightGather()
    )
    assert resolved(pliant.allreduce(), has_replicas=False) == Sharded(
        gradients=ReduceScatter(), weights=WeightGather()
    )
    assert resolved(alone, has_replicas=False) == alone


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: pliant.sharded(gradients="topk"), "gradients of a sharded model travel in one codec, but AllGather"),
        (lambda: pliant.sharded(weights="powersgd"), "weights of a sharded model travel in one codec, but LowRank"),
        (
            lambda: pliant.sharded(weights="bf16", residual="full"),
            "residual says what gradients leave behind, but none",
        ),
        (lambda: pliant.sharded(gradients="int4", regather=False), "regather says how weights travel, but no weights"),
        (lambda: pliant.sharded(weights="differences(int4)", regather=True), "regather must be False with differences"),
        (lambda: pliant.sharded(gradients="onebit", residual="none"), "residual must be 'full' or 'int8'"),
        (lambda: pliant.sharded(replicas="owner"), "replicas must hold all of their shard alike"),
        (lambda: resolved(pliant.gossip(free=True), has_replicas=True), "replicas must not meet in pairs"),
        (lambda: pliant.sharded(replicas="halos"), "replicas must not meet in pairs at a free pace, got RegionServers"),
        (lambda: resolved(Sharded(replicas=pliant.int4()), has_replicas=False), "no two hold the same"),
        (lambda: resolved(pliant.diloco(), has_replicas=False), "travel in one codec, but LocalSteps"),
        (lambda: pliant.parse("differences(int4)"), "is no algorithm"),
    ],
)
def test_what_does_not_fit_is_refused(ask, sentence):
    with pytest.raises(ValueError, match=sentence):
        ask()


def test_codecs_by_value_are_taken():
    assert pliant.differences(MinMax8()) == pliant.differences("bytegrad")
