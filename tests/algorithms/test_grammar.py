"""One grammar: what is printed is read back, what is typed means what Python says, and nonsense ends in a sentence."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

import pliant
from pliant.algorithms import ALGORITHMS as REGISTRY, executor_for, parse
from pliant.algorithms.by_name import plan_of_text
from pliant.engine.plan_resolution import resolve_plan
from pliant.spec import AllReduce, BetweenHosts, CodecSpec, Every, LocalSteps, SyncPlan, from_json
from tables import ALGORITHMS, BETWEEN_STEPS

OLD = Path(__file__).parents[1] / "spec" / "plans_of_format_1.jsonl"
TYPED = {
    "diloco(period=64, averaging=int4)": lambda: pliant.diloco(64, averaging=pliant.int4()),
    "diloco(period=64,averaging=int4,outer_lr=0.5)": lambda: pliant.diloco(64, averaging=pliant.int4(), outer_lr=0.5),
    "every(2, between_hosts(qsgd(bits=4)))": lambda: pliant.every(2, pliant.between_hosts(pliant.qsgd(bits=4))),
    "diloco(averaging=between_hosts(onebit))": lambda: pliant.diloco(averaging=pliant.between_hosts(pliant.onebit())),
    "late(algorithm=powersgd)": lambda: pliant.delayed(pliant.powersgd()),
    "late(compensation=0.1)": lambda: pliant.delayed(compensation=0.1),
    "after(50, bf16, then=onebit)": lambda: pliant.after(50, pliant.bf16(), then=pliant.onebit()),
    "choco(codec=sign, graph=ring, gamma=0.1)": lambda: pliant.choco(
        CodecSpec(name="sign"), pliant.Graph(kind="ring"), gamma=0.1
    ),
    "owner(qsgd(bits=4))": lambda: pliant.sharded_optimizer(CodecSpec(name="qsgd", settings={"bits": 4})),
    "owner(codec=qsgd(bits=4))": lambda: pliant.sharded_optimizer(CodecSpec(name="qsgd", settings={"bits": 4})),
    "tasc(ratio=0.0077, agreement=leader, feedback=difference)": lambda: pliant.tasc(0.0077, feedback="difference"),
    "dynamic(tasc(agreement=host), exposed_share=0.1)": lambda: pliant.with_target(
        pliant.tasc(agreement="host"), exposed_share=0.1
    ),
    "gossip(free=True)": lambda: pliant.gossip(free=True),
    "allreduce(few_rounds=true)": lambda: pliant.allreduce(few_rounds=True),
    "demo(signed=false)": lambda: pliant.decoupled_momentum(signed=False),
    "ef21_muon(averaging=topk(ratio=0.1), momentum=0.9)": lambda: pliant.ef21_muon(pliant.topk(0.1), momentum=0.9),
    "dion(16)": lambda: pliant.dion(rank=16),
    "demo(signed=0)": lambda: pliant.decoupled_momentum(signed=False),
    "LocalSteps(period=2, averaging=BetweenHosts(inner=AllReduce))": lambda: LocalSteps(
        period=2, averaging=BetweenHosts(inner=AllReduce())
    ),
}


@pytest.mark.parametrize("text", TYPED)
def test_what_is_typed_means_what_python_says(text):
    assert parse(text) == TYPED[text]()
    weight = torch.zeros(1, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0)
    assert resolve_plan(text, sgd).rules[-1].exchange == TYPED[text]()


@pytest.mark.parametrize("name", sorted(ALGORITHMS | BETWEEN_STEPS))
def test_every_node_is_read_back_from_what_is_printed(name):
    node = (ALGORITHMS | BETWEEN_STEPS)[name]
    assert parse(str(node)) == node


def test_plans_of_before_are_read_back_from_what_is_printed():
    for line in OLD.read_text().splitlines():
        for rule in from_json(SyncPlan, json.dumps(json.loads(line)["plan"])).rules:
            assert parse(str(rule.exchange)) == rule.exchange


def test_every_bare_name_is_a_node_that_something_carries_out():
    for name, row in REGISTRY.items():
        if row.bare:
            assert executor_for(parse(name)).node == parse(name)
        else:
            with pytest.raises(ValueError, match=f"'{name}' needs settings; write them behind it, as in '{name}"):
                parse(name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("zip", "there is no algorithm 'zip'; there are allreduce"),
        ("zip(ratio=1)", "there is no algorithm 'zip'; there are allreduce"),
        ("topk(share=0.1)", "topk does not take these settings: .*share"),
        ("topk(ratio", "cannot be read as an algorithm"),
        ("", "cannot be read as an algorithm"),
        ("topk(ratio=0.1)x", "cannot be read as an algorithm"),
        ("diloco(averaging=magic)", "there is no algorithm 'magic'"),
        ("gossip(graph=star)", "there is no graph 'star'; there are ring"),
        ("gossip(graph=matrix)", "there is no graph 'matrix'"),
        ("choco(codec=zip)", "there is no codec 'zip'"),
        ("choco(codec=sign(64))", "the settings of the codec sign must be named"),
        ("owner(powersgd)", "a codec was expected, but LowRank has none"),
        ("every(0, int4)", "invalid Every: steps must be at least 1, got 0"),
        ("every(2, diloco)", "LocalSteps exchanges weights; use the period of that node"),
        ("Combinator(inner=AllReduce())", "there is no algorithm 'Combinator'"),
        ("__import__('os').system('true')", "is neither a number, a word nor name"),
        ("(lambda: 1)()", "is neither a number, a word nor name"),
        ("[x for x in (1,)]", "is neither a number, a word nor name"),
        ("topk(-'a')", "\"-'a'\" is neither a number, a word nor name"),
        ("Custom(name='x', settings={{}: 1})", "is neither a number, a word nor name"),
        ("topk(ratio=0.1, ratio=0.5)", "has the setting ratio twice; leave one out"),
        ("LocalSteps(period=2, averaging=3)", "LocalSteps does not take these settings"),
        ("Every(inner=3, steps=2)", "Every does not take these settings"),
        ("3", "'3' is no algorithm"),
        ("Outer(lr=0.7)", "is no algorithm"),
        ("every(" * 9000 + ")" * 9000, "cannot be read as an algorithm"),
        ("a" * 100_000, "at most 65536 are read"),
    ],
    ids=lambda text: text[:30],
)
def test_nonsense_ends_in_a_sentence(text, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        parse(text)


@given(st.text(st.sampled_from("abtopk4int(),=.0123456789'\"{}[]:+-* \n"), max_size=40))
def test_any_text_is_a_node_or_a_sentence(text):
    try:
        node = parse(text)
    except ValueError:
        return
    assert parse(str(node)) == node


def test_texts_nested_in_each_other():
    names = ("int4", "topk(ratio=0.1)", "between_hosts(onebit)")
    for inner, steps in itertools.product(names, (2, 3)):
        node = parse(f"every({steps}, {inner})")
        assert isinstance(node, Every)
        assert node.inner == parse(inner)


def test_a_text_longer_than_names_of_files_and_the_name_of_a_folder_are_algorithms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("onebit").mkdir()
    assert plan_of_text("onebit").rules[-1].exchange == pliant.onebit()
    assert plan_of_text(f"topk(ratio={'0' * 300}.5)").rules[-1].exchange == pliant.topk(0.5)


def test_a_registered_algorithm_is_part_of_the_grammar():
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Mine:
        beta: float = 0.9

        @property
        def node(self):
            return pliant.spec.Custom(name="mine_in_the_grammar", settings={"beta": self.beta})

    pliant.register("mine_in_the_grammar", Mine)
    assert parse("every(2, mine_in_the_grammar(beta=0.5))") == Every(steps=2, inner=Mine(beta=0.5).node)
    assert parse("mine_in_the_grammar") == Mine().node


def test_the_command_line_reads_it_without_torch():
    code = (
        "import sys; from pliant.algorithms.by_name import plan_of_text; "
        "plan = plan_of_text('every(2, between_hosts(qsgd(bits=4)))'); "
        "print(plan.rules[-1].exchange); assert 'torch' not in sys.modules, 'torch'"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip() == str(parse("every(2, between_hosts(qsgd(bits=4)))"))


def test_a_text_that_spares_small_parameters_spares_them_among_replicas_and_leaves_shards_as_they_are():
    shards = "gradients=int4, weights=differences(int4)"
    small, whole = plan_of_text(f"sharded({shards}, replicas=onebit)").rules
    assert small.exchange == parse(f"sharded({shards}, replicas=allreduce(few_rounds=True))")
    assert whole.exchange == parse(f"sharded({shards}, replicas=onebit)")
