"""One table of codecs, one registry of algorithms: nothing says again what a row or a node says."""

import ast
import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import pliant
import rows
from models import new_ddp, train
from pliant.algorithms import ALGORITHMS as REGISTRY
from pliant.spec import CODECS, NODES, BetweenRacks, Custom, Exchange, Sharded, Timing
from tables import ROWS, optimizer_for

SOURCE = Path(pliant.__file__).parent
WRITE = "write it with .venv/bin/python scripts/rows.py"


def test_the_stub_names_every_algorithm():
    assert rows.stub(rows.STUB.read_text()) == rows.STUB.read_text(), WRITE


def test_what_a_row_means_stays():
    """Plans, checkpoints and results hold these texts and hashes: a changed default is a new format."""
    kept, now = json.loads(rows.GOLDEN.read_text()), rows.golden()
    assert {kind: kept[kind].keys() for kind in kept} == {kind: now[kind].keys() for kind in now}, WRITE
    assert kept == now


# - Names

ITS_FILE = {
    "algorithms/registry.py": {*REGISTRY},
    "algorithms/gradients.py": {*CODECS},  # algorithms that are one codec
    "algorithms/outer.py": {*CODECS},
    "algorithms/weights.py": {*CODECS},
    "algorithms/sharding.py": {*CODECS},
    "spec/codecs.py": {*CODECS},
    **{f"codecs/{facts.made_by.partition(':')[0]}.py": {*CODECS} for facts in CODECS.values()},
}
"""Files in which a name is at home."""
EXCEPTIONS = {
    "spec": {"dct", "minmax8", "sign", "gossip"},  # defaults of nodes; words of format 1
    "layouts": {"int4", "minmax8"},  # values of `tasc`; residuals of shards
    "simulator": {"int4"},  # the same
    "engine": {"allreduce"},  # a plan's name
    "autotune": {"tasc"},  # a family
    "cli": {  # plans that `doctor` predicts
        *("bytegrad", "onebit", "powersgd", "topk", "local_sgd", "gossip", "diloco", "streaming_diloco", "every"),
    },
    "planner": {  # families of several rows, whose genes data sets hold; the plans that a person would try first
        *("bf16", "int4", "minmax8", "qsgd", "sign", "ternary", "topk", "blocktopk", "randomk"),
        *(
            "sharded_optimizer",
            "tasc",
            "gossip",
            "choco",
            "diloco",
            "bytegrad",
            "onebit",
            "powersgd",
            "local_sgd",
            "every",
        ),
    },
}
"""Names that a room writes out all the same."""


def literals(path):
    """Return the strings of a file that are neither documentation nor names that it offers."""
    tree = ast.parse(path.read_text())
    left_out = [n for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    left_out += [n.value for n in tree.body if isinstance(n, ast.Assign) and "__all__" in ast.dump(n.targets[0])]
    beside = {id(inner) for node in left_out for inner in ast.walk(node)}
    strings = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {n.value for n in strings if id(n) not in beside}


def test_a_name_is_written_in_its_row_and_its_file():
    found = {}
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        names = literals(path) & {*CODECS, *REGISTRY} - ITS_FILE.get(place.as_posix(), set())
        found.setdefault(place.parts[0].removesuffix(".py"), set()).update(names)
    assert {room: names for room, names in found.items() if names} == EXCEPTIONS


# - Fields

PREDICTED = {("VisibleChanges", "assumed_density")}
"""Fields that stand for what training decides, and that predictions alone read."""
LOOKING = {"__post_init__", "text_of", "plain", "_left_out", "timing", "early_timing"}
"""Functions that read fields whatever they mean, as loops over all do. A timing counts where its fields are read."""
FIRST = {
    kind.__name__: next(name for name, row in ROWS.items() if any(type(node) is kind for node in row.walk()))
    for name, kind in NODES.items()
    if kind is not Custom  # its name and settings choose a builder: tests/engine/test_custom.py
    and kind is not Sharded  # a DDP model has no shards: tests/sharded
    and kind is not BetweenRacks  # ranks must name their racks: tests/engine/test_rack_levels.py
}
"""Type of node -> a row that has one."""
ALSO = {
    "Gossip": "gossip-free",
    "CodedGossip": "choco-free",
    "LocalSteps": "decoupled_diloco",
    "RegionServers": "halos-alone",
}
"""Type of node -> another row, which reads what it has for a free pace, or for several regions."""


@pytest.fixture
def read(monkeypatch):
    """Return the (type, field) that Pliant reads of nodes and of their timing."""
    found = set()
    for kind in (*(NODES[name] for name in FIRST), Timing):
        names = {field.name for field in fields(kind)}

        def look(value, name, kind=kind, names=names):
            code, got = sys._getframe(1).f_code, object.__getattribute__(value, name)
            over_all = "/spec/" in code.co_filename and code.co_name.endswith(("genexpr>", "comp>"))
            meant = code.co_name not in LOOKING and (not over_all or isinstance(got, Exchange))
            if name in names and str(SOURCE) in code.co_filename and meant:
                found.add((kind.__name__, name))
            return got

        monkeypatch.setattr(kind, "__getattribute__", look)
    return found


@pytest.mark.parametrize("kind", FIRST)
def test_every_field_of_a_node_is_read(kind, read):
    """A setting that nobody reads would be carried out as another plan, without a word."""

    def body(place, name):
        ddp = new_ddp(place)
        optimizer = optimizer_for(name, ddp.parameters())
        with pliant.relax(ddp, optimizer, ROWS[name], hosts=[[0], [1]], timeout_s=20):
            train(ddp, optimizer, place.rank, range(6))

    for name in filter(None, (FIRST[kind], ALSO.get(kind))):
        pliant.run_world(2, lambda place, name=name: body(place, name), timeout_s=60)
    assert {field.name for field in fields(NODES[kind])} <= {
        field for of, field in read | PREDICTED if of in (kind, "Timing")
    }
