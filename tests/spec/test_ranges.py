"""Ranges of single fields: whatever declares one accepts its bounds, and refuses what is beyond them, and NaN."""

import dataclasses
import json
import math
import re
import typing
from typing import Literal

import pytest

import pliant
from pliant.codecs import codec_class
from pliant.spec import (
    CODECS,
    NODES,
    AllReduce,
    CodecSpec,
    CurvatureSpec,
    EmbeddingPlan,
    Graph,
    Match,
    OptimizerState,
    Outer,
    Placement,
    ReduceScatter,
    Selection,
    SyncPlan,
    Table,
    TableLayout,
    Target,
    from_json,
)
from pliant.spec.ranges import Range

NEEDED = {
    "ScatterGather": {"codec": CodecSpec(name="int4")},
    "AllGather": {"codec": CodecSpec(name="topk")},
    "VisibleChanges": {"assumed_density": 0.1},
    "NeighborMean": {"pull": 0.5},
    "Custom": {"name": "mine", "exchanges": "weights"},
    "CompressedMomentum": {"beta": 0.9, "warmup_steps": 1},
    "MomentumDifferences": {"averaging": AllReduce()},
    "Every": {"steps": 2, "inner": AllReduce()},
    "Delayed": {"inner": AllReduce()},
    "After": {"steps": 2, "first": AllReduce(), "then": AllReduce()},
    "BetweenHosts": {"inner": AllReduce()},
    "BetweenRacks": {"inner": AllReduce()},
    "Gossip": {"delay_steps": 0},
    "LocalSteps": {"period": 4},
    "OptimizerState": {"name": "exp_avg", "period": 1},
    "Sharded": {"gradients": ReduceScatter()},
    "Target": {"of": "exposed_s", "value": 1.0, "floor": 5e-324, "ceiling": 1.0},
    "Selection": {"rescore": 1 << 20},
    "CurvatureSpec": {"max_interval": 1 << 20},
    "Table": {"name": "t", "num_rows": 1, "dim": 1},
    "TableLayout": {"kind": "rows"},
    "EmbeddingPlan": {
        "tables": (Table(name="t", num_rows=1, dim=1),),
        "layouts": (TableLayout(kind="rows"),),
        "num_ranks": 1,
        "batch_size": 1,
    },
}
"""Fields that a record must have, or with which the bounds of another one stand."""
BESIDE = {
    "staleness": {"Gossip": {"pace": "free"}, "CodedGossip": {"pace": "free", "gamma": 0.5}},
    "grace_s": {"LocalSteps": {"pace": "free", "quorum": -1}},
    "every": {"Outer": {"momentum": 0.5}},
    "decay": {"ScatterGather": {"feedback": "worker"}},
}
"""Field -> record -> what its bounds need beside those, and other fields do not."""
RECORDS = [*NODES.values()]
RECORDS += [OptimizerState, Outer, Placement, Target, Selection, CurvatureSpec, ReduceScatter]
RECORDS += [Graph, Match, SyncPlan, Table, TableLayout, EmbeddingPlan]


def beyond(accepted):
    """Return a value below a range, and one above it if it ends."""
    low, high = (min(accepted.only), max(accepted.only)) if accepted.only else (accepted.low, accepted.high)
    values = [low if accepted.above else low - 1]
    return values if high == math.inf else [*values, high if accepted.below else high + 1]


def bounds(accepted):
    """Return the least and the largest value of a range, or values next to bounds that are left out."""
    if accepted.only:
        return accepted.only
    low = math.nextafter(accepted.low, math.inf) if accepted.above else accepted.low
    high = 1 << 20 if accepted.high == math.inf else accepted.high
    return (low, math.nextafter(high, 0) if accepted.below else high)


SETTINGS = [(name, setting, accepted) for name, facts in CODECS.items() for setting, accepted in facts.settings.items()]


@pytest.mark.parametrize(("name", "setting", "accepted"), SETTINGS, ids=str)
def test_a_codec_refuses_settings_outside_of_its_row(name, setting, accepted):
    """As a plan reads it, as text names it, and built directly, with one sentence."""
    sentence = rf"^the codec '{name}' has {setting} \S+, but it must be {re.escape(str(accepted))}\.$"
    refused = beyond(accepted)
    refused += [accepted.low + 1] if accepted.step else []
    for value in (*refused, math.nan, math.inf):
        for make in (
            lambda value=value: CodecSpec(name=name, settings={setting: value}),
            lambda value=value: codec_class(name)(**{setting: value}),
        ):
            with pytest.raises(ValueError, match=sentence):
                make()
    exchange = json.dumps({"type": "Sharded", "weights": {"codec": {"type": name, setting: refused[0]}}})
    with pytest.raises(ValueError, match=sentence):
        from_json(SyncPlan, f'{{"pliant": "SyncPlan", "format": 2, "rules": [{{"exchange": {exchange}}}]}}')
    with pytest.raises(ValueError, match=sentence):
        pliant.parse(f"WeightGather(codec={name}({setting}={refused[0]}))")
    for value in bounds(accepted):
        assert CodecSpec(name=name, settings={setting: value}).setting(setting) == value
        assert codec_class(name)(**{setting: value}).nbytes(100) > 0
    assert accepted.default in accepted


def declared():
    """Yield every field of a node, or of a node's setting, that has a range."""
    for kind in RECORDS:
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            yield from ((kind, name, each) for each in getattr(hint, "__metadata__", ()) if isinstance(each, Range))


@pytest.mark.parametrize(("kind", "name", "accepted"), [*declared()], ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_field_refuses_what_is_outside_of_its_range(kind, name, accepted):
    def make(value):
        of_many = typing.get_origin(typing.get_type_hints(kind)[name]) is tuple
        needed = NEEDED.get(kind.__name__, {}) | BESIDE.get(name, {}).get(kind.__name__, {})
        return kind(**{**needed, name: (value,) if of_many else value})

    for value in (*beyond(accepted), math.nan):
        with pytest.raises(
            ValueError, match=rf"^invalid {kind.__name__}: {name} must be {re.escape(str(accepted))}, got "
        ):
            make(value)
    with pytest.raises(
        ValueError, match=f"^invalid {kind.__name__}: {name} must be {re.escape(str(accepted))}( and finite)?, got "
    ):
        make(math.inf)
    for value in bounds(accepted):
        made = getattr(make(value), name)
        assert made in (value, (value,))


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_field_of_few_words_refuses_others(kind):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if typing.get_origin(hints[field.name]) is Literal:
            with pytest.raises(ValueError, match=rf"^invalid {kind.__name__}: {field.name} must be one of .*'nothing'"):
                kind(**{**NEEDED.get(kind.__name__, {}), field.name: "nothing"})


def counts():
    """Yield every field that holds integers, or a tuple of them."""
    for kind in RECORDS:
        hints = typing.get_type_hints(kind).items()
        yield from ((kind, name) for name, hint in hints if hint in (int, int | None, tuple[int, ...]))


@pytest.mark.parametrize(("kind", "name"), [*counts()], ids=lambda v: getattr(v, "__name__", v))
def test_a_count_has_no_fraction(kind, name):
    """JSON would not read it again, and 2.5 steps would be 3 or 2."""
    value = (4096.5,) if typing.get_origin(typing.get_type_hints(kind)[name]) is tuple else 4096.5
    with pytest.raises(ValueError, match=rf"^invalid {kind.__name__}: {name} must be a whole number, got \(?4096\.5"):
        kind(**{**NEEDED.get(kind.__name__, {}), name: value})


def test_ranges_say_what_they_are():
    assert [str(r) for r in (Range(low=1), Range(low=0, above=True), Range(low=0, high=1), Range(only=(2, 4)))] == [
        "at least 1",
        "above 0",
        "from 0 to 1",
        "one of 2, 4",
    ]
    assert str(Range(low=0, high=1, above=True)) == "above 0 and at most 1"
    assert str(Range(low=32, high=64, step=32)) == "a multiple of 32 from 32 to 64"
