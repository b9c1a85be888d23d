"""Records: round trips, refusals, and the table of what does not go together."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pliant.spec import (
    After,
    AllReduce,
    CodecSpec,
    CurvatureSpec,
    EmbeddingPlan,
    Event,
    Host,
    Link,
    Machine,
    Match,
    Move,
    Rack,
    Rule,
    ScatterGather,
    Schedule,
    SyncPlan,
    Table,
    TableLayout,
    TensorSpec,
    Timeline,
    Topology,
    Workload,
    from_json,
    load,
    save,
    to_json,
)
from pliant.spec.files import require_places, write_atomically
from pliant.spec.units import (
    format_bytes,
    format_rate,
    format_time,
    parse_bytes,
    parse_rate,
    parse_time,
)

CODEC = CodecSpec(name="qsgd", settings={"bits": 4})
RELAXED = After(steps=3, first=AllReduce(), then=ScatterGather(codec=CODEC, feedback="both"))
PLAN = SyncPlan(rules=(Rule(match=Match(layer="*Norm*", max_numel=9)), Rule(exchange=RELAXED)), name="mine")
TOPOLOGY = Topology(
    hosts=(Host(name="a", num_ranks=2, send_bytes_per_s=1e7), Host(name="b", delay_s=0.005)),
    links=(Link(source="a", target="b", bytes_per_s=1e6, latency_s=1e-3),),
)
RECORDS = [
    PLAN,
    TOPOLOGY,
    replace(TOPOLOGY, racks=(Rack(name="r", hosts=("b", "a"), receive_bytes_per_s=1e6),)),
    Schedule(
        name="s",
        num_ranks=2,
        num_blocks=1,
        rounds=((Move(source=0, target=1, block=0, kind="reduce"),), (Move(source=1, target=0, block=0, kind="copy"),)),
    ),
    Workload(
        name="w",
        tensors=(TensorSpec(name="x", shape=(3, 4), dtype="float32", layer="Linear", ready_s=0.5),),
        forward_s=1.0,
        backward_s=2.0,
    ),
    Workload(
        name="measured",
        tensors=(
            TensorSpec(
                name="x",
                shape=(3,),
                dtype="float32",
                layer="Linear",
                ready_s=0.5,
                gradient_share=1.0,
                gradient_error={"qsgd(block=512, bits=4)": 0.25},
            ),
        ),
        forward_s=1.0,
        backward_s=2.0,
        batch_size=32,
        noise_scale=1000.0,
        rank_factors=(1.0, 1.5),
    ),
    Machine(
        name="m",
        message_s=1e-4,
        add_bytes_per_s=1e9,
        memory_bytes_per_s=1e10,
        encode_s_per_element={"qsgd": 1e-9},
        decode_s_per_element={"qsgd": 2e-9},
    ),
    Timeline(events=(Event(rank=0, step=1, kind="encode", name="b", start_s=0.0, end_s=1.0),)),
    CurvatureSpec(estimator="fisher", beta=0.5, interval=5),
    Table(name="t", num_rows=10, dim=4, pooling="mean", padding_id=9),
    TableLayout(kind="rows", num_hot=3, moves="sums", bits=8),
    EmbeddingPlan(
        tables=(Table(name="a", num_rows=9, dim=5), Table(name="b", num_rows=4, dim=8, weighted=True)),
        layouts=(TableLayout(kind="columns", homes=(2, 0), moves="sums", bits=16), TableLayout(kind="rows", num_hot=2)),
        num_ranks=3,
        batch_size=64,
        every=4,
        optimizer="adam",
        hierarchical=True,
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_round_trip_through_json_and_disk(record, tmp_path):
    kind = type(record)
    assert from_json(kind, to_json(record)) == record
    assert to_json(from_json(kind, to_json(record))) == to_json(record)
    save(record, tmp_path / "deep" / "record.json")
    assert load(kind, tmp_path / "deep" / "record.json") == record
    assert hash(record) == hash(load(kind, tmp_path / "deep" / "record.json"))


def test_a_workload_from_before_gradients_were_measured_still_loads():
    tensor = {"name": "x", "shape": [3], "dtype": "float32", "layer": "Linear", "ready_s": 0.5}
    body = {"pliant": "Workload", "format": 1, "name": "w", "tensors": [tensor], "forward_s": 1.0, "backward_s": 2.0}
    found = from_json(Workload, json.dumps(body))
    assert (found.noise_scale, found.rank_factors, found.batch_size) == (None, (), 1)
    assert found.tensors[0].gradient_error == {}
    with pytest.raises(ValueError, match="not measured under 'sign', but under no codec"):
        found.gradient_error("sign")


def test_a_gradients_error_weighs_tensors_by_their_share():
    def tensor(name, share, error):
        return TensorSpec(
            name=name,
            shape=(3,),
            dtype="float32",
            layer="L",
            ready_s=0.0,
            gradient_share=share,
            gradient_error={"sign": error},
        )

    pair = (tensor("a", 0.75, 0.2), tensor("b", 0.25, 0.6))
    assert Workload(name="w", tensors=pair, forward_s=1, backward_s=1).gradient_error("sign") == pytest.approx(0.3)


def test_a_machine_with_impossible_figures_is_refused():
    with pytest.raises(ValueError, match="a time below 0, or a rate that is not above 0"):
        Machine(name="m", message_s=-1.0, add_bytes_per_s=1.0, memory_bytes_per_s=1.0)
    with pytest.raises(ValueError, match="a time below 0, or a rate that is not above 0"):
        Machine(name="m", message_s=0.0, add_bytes_per_s=0.0, memory_bytes_per_s=1.0)


def changed(record, **changes):
    return json.dumps({**json.loads(to_json(record)), **changes})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not JSON"),
        ("[]", "holds 'list', but a 'SyncPlan'"),
        (to_json(TOPOLOGY), "holds 'Topology', but a 'SyncPlan'"),
        (changed(PLAN, format=9), "format 9, this Pliant reads formats 1 and 2"),
        (changed(TOPOLOGY, format=2, pliant="SyncPlan"), "no field 'hosts'"),
        (changed(PLAN, colour="red"), "no field 'colour'; it has bucket_bytes, name"),
        (changed(PLAN, name=3), "SyncPlan.name must be of type str, but is 3"),
        (changed(PLAN, rules={}), "SyncPlan.rules must be a list"),
        (
            changed(PLAN, rules=[{"exchange": {"type": "Everything"}}]),
            "has the type 'Everything'.*there are AllReduce, ",
        ),
        (changed(PLAN, rules=[{"exchange": {"type": "Combinator"}}]), "has the type 'Combinator'"),
        (changed(PLAN, rules=[{"exchange": {"type": ["Every"]}}]), r"has the type \['Every'\]"),
        (changed(PLAN, rules=[{"exchange": {}}]), "has the type None"),
        (changed(PLAN, rules=[{"exchange": {"type": "Gossip", "gamma": 1}}]), "no field 'gamma'; it has delay_steps"),
        (changed(PLAN, rules=[{"exchange": {"type": "ScatterGather"}}]), "lacks the field 'codec'"),
        (changed(PLAN, rules=[{"exchange": {"type": "AllReduce", "codec": {"bits": 4}}}]), "an object with a type"),
        (changed(PLAN, rules=[{"exchange": {"type": "AllReduce", "codec": {"type": "zip"}}}]), "no codec 'zip'"),
        (changed(PLAN, rules=[{"exchange": {"type": "LowRank", "rank": "4"}}]), "exchange.rank must be of type int"),
    ],
)
def test_what_is_no_plan_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_json(SyncPlan, text)


def test_errors_of_a_file_name_it(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match=r"plan\.json: the file holds None"):
        load(SyncPlan, tmp_path / "plan.json")


def test_writing_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomically(path, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for target in (pipe, tmp_path):
        with pytest.raises(ValueError, match="is not an ordinary file"):
            write_atomically(target, "x")
    assert pipe.is_fifo()


def test_places_of_results_are_looked_at_before_there_are_any(tmp_path):
    inside, file = tmp_path / "new" / "folder", tmp_path / "file"
    require_places(None, inside / "x.json")
    assert list(inside.iterdir()) == []
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"below.json is to be written, but its folder does not take a file \("):
        require_places(inside / "x.json", file / "below.json")
    with pytest.raises(ValueError, match="is not an ordinary file"):
        require_places(tmp_path)
    require_places(file)
    assert file.read_text() == "mine"


def test_the_hash_is_of_what_counts_and_the_same_everywhere():
    assert PLAN.hash == replace(PLAN, name="other", provenance="there").hash
    assert PLAN.hash != SyncPlan().hash
    reordered = CodecSpec(name="topk", settings={"sampled": 0, "ratio": 0.1})
    ordered = CodecSpec(name="topk", settings={"ratio": 0.1, "sampled": 0})
    assert reordered == ordered
    assert hash(reordered) == hash(ordered)
    code = f"from pliant.spec import *; print(from_json(SyncPlan, {to_json(PLAN)!r}).hash)"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == PLAN.hash


def test_settings_cannot_be_changed():
    with pytest.raises(TypeError):
        CODEC.settings["bits"] = 8


def test_the_first_rule_that_matches_decides():
    assert PLAN.exchange_for("bn.weight", "BatchNorm2d", 8) == AllReduce()
    assert PLAN.exchange_for("bn.weight", "BatchNorm2d", 10) == RELAXED
    assert PLAN.exchange_for("fc.weight", "Linear", 8) == RELAXED
    with pytest.raises(ValueError, match="last rule of a plan must match every parameter"):
        SyncPlan(rules=(Rule(match=Match(pattern="*.weight")),))


def test_topologies_check_themselves():
    assert (TOPOLOGY.num_ranks, list(TOPOLOGY.ranks_of(0)), list(TOPOLOGY.ranks_of(1))) == (3, [0, 1], [2])
    with pytest.raises(ValueError, match="same name"):
        Topology(hosts=(Host(name="a"), Host(name="a")))
    with pytest.raises(ValueError, match="names the host 'c', but the hosts are a"):
        Topology(hosts=(Host(name="a"),), links=(Link(source="a", target="c", bytes_per_s=1.0, latency_s=0.0),))
    with pytest.raises(ValueError, match="at least one"):
        Topology(hosts=())
    with pytest.raises(ValueError, match="negative"):
        Host(name="a", delay_s=-1.0)
    with pytest.raises(ValueError, match="0 ranks"):
        Host(name="a", num_ranks=0)


def test_racks_hold_each_host_once_and_files_without_them_stay_as_they_were():
    racks = (Rack(name="r", hosts=("a", "b"), send_bytes_per_s=1e6),)
    racked = replace(TOPOLOGY, racks=racks)
    assert from_json(Topology, to_json(racked)) == racked
    assert racked.rack_of() == TOPOLOGY.rack_of() == (0, 0)
    assert "rack" not in to_json(TOPOLOGY)
    for hosts in (("a",), ("a", "b", "b"), ("a", "c")):
        with pytest.raises(ValueError, match=r"the racks hold a.*, but the hosts are a, b; if there are racks"):
            replace(TOPOLOGY, racks=(Rack(name="r", hosts=hosts),))
    with pytest.raises(ValueError, match="two racks have the same name among r, r"):
        replace(TOPOLOGY, racks=(Rack(name="r", hosts=("a",)), Rack(name="r", hosts=("b",))))
    with pytest.raises(ValueError, match="'r' has no hosts"):
        Rack(name="r", hosts=())
    with pytest.raises(ValueError, match="'r' has a negative rate"):
        Rack(name="r", hosts=("a",), send_bytes_per_s=-1.0)


@given(st.floats(1, 9e11, allow_nan=False))
def test_units_print_what_they_parse(value):
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.01, abs=1)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=0.01)
    assert parse_time(format_time(value * 1e-6)) == pytest.approx(value * 1e-6, rel=0.01)
    assert not any("e" in text for text in (format_bytes(value), format_rate(value), format_time(value * 1e-6)))


def test_units_that_are_rounded_up_to_the_next_are_written_in_it():
    assert (format_bytes(999_700), format_rate(999.7e6 / 8), format_time(0.9997)) == ("1MB", "1gbit", "1s")
    assert (format_bytes(999_400), format_time(4000), format_bytes(2.5e12)) == ("999KB", "4000s", "2500GB")


def test_units_as_people_write_them():
    assert parse_bytes("25MB") == 25_000_000
    assert parse_bytes("1.5 KiB") == 1536
    assert parse_rate("100mbit") == parse_rate("12.5MB/s") == 12_500_000
    assert parse_time("1.2ms") == pytest.approx(0.0012)
    for parse, text, noun in (
        (parse_bytes, "10 apples", "a size"),
        (parse_rate, "fast", "a rate"),
        (parse_time, "", "a time"),
    ):
        with pytest.raises(ValueError, match=f"is not {noun}: write a number and one of"):
            parse(text)


def test_an_interval_of_curvature_ends_where_it_begins_or_later():
    with pytest.raises(ValueError, match="max_interval must be at least the interval of 20, got 5"):
        CurvatureSpec(max_interval=5)


EMBEDDING = next(record for record in RECORDS if isinstance(record, EmbeddingPlan))


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (Table, {"num_rows": 0, "dim": 4}, "has 0 rows of 4; it needs at least one of each"),
        (Table, {"num_rows": 5, "dim": 4, "padding_id": 5}, "has rows 0 to 4, but pads with 5"),
        (Table, {"num_rows": 5, "dim": 4, "pooling": "mean", "weighted": True}, "weights need the sum"),
        (TableLayout, {"kind": "table"}, "a layout of kind 'table' has homes \\(\\); a 'table' has one"),
        (TableLayout, {"kind": "columns", "homes": (1,)}, "'columns' two or more"),
        (TableLayout, {"kind": "rows", "homes": (1,)}, "'rows' and 'replicated' none"),
        (TableLayout, {"kind": "replicated", "num_hot": 2}, "only 'rows' may have some"),
        (TableLayout, {"kind": "columns", "homes": (0, 1)}, "so 'sums' move, not 'vectors'"),
        (TableLayout, {"kind": "rows", "moves": "sums", "distinct": False}, "`distinct=False` is for 'vectors'"),
    ],
)
def test_tables_and_layouts_that_cannot_be(kind, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(**({"name": "t"} if kind is Table else {}), **settings)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layouts": ()}, "2 tables and 0 layouts"),
        ({"tables": (EMBEDDING.tables[0],) * 2}, "two tables are called 'a'"),
        ({"every": 0}, "sums every 0 steps cannot be"),
        ({"num_ranks": 2}, "'a' is at home at rank 2, but there are ranks 0 to 1"),
        ({"layouts": (EMBEDDING.layouts[1], TableLayout(kind="rows", num_hot=5))}, "'b' has 4 rows, but 5 hot ones"),
        (
            {"layouts": (TableLayout(kind="columns", homes=(0, 1, 2, 0, 1, 2), moves="sums"), EMBEDDING.layouts[1])},
            "'a' has 5 columns, but 6 parts",
        ),
    ],
)
def test_embedding_plans_that_cannot_be(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(EMBEDDING, **change)


@given(st.integers(1, 7), st.integers(1, 40), st.integers(1, 30), st.integers(1, 5))
def test_pieces_hold_each_row_and_column_once(num_ranks, num_rows, dim, num_parts):
    tables = tuple(Table(name=f"t{k}", num_rows=num_rows + k, dim=dim) for k in range(3))
    homes = tuple(k % num_ranks for k in range(min(num_parts, dim)))
    one = TableLayout(kind="table", homes=homes) if len(homes) == 1 else None
    layouts = (
        TableLayout(kind="rows"),
        one or TableLayout(kind="columns", homes=homes, moves="sums"),
        TableLayout(kind="replicated"),
    )
    plan = EmbeddingPlan(tables=tables, layouts=layouts, num_ranks=num_ranks, batch_size=1, optimizer="adagrad")
    pieces = plan.pieces()
    owned = [sum(plan.num_owned(piece, rank) for rank in range(num_ranks)) for piece in pieces]
    assert owned == [num_rows, *(num_rows + 1,) * len(homes), 0]
    columns = [range(p.first_column, p.first_column + p.dim) for p in pieces if p.index == 1]
    assert [c for each in columns for c in each] == list(range(dim))
    assert plan.row_bytes(pieces[0]) == 8 * dim
    for rank in range(num_ranks):
        assert plan.num_owned(pieces[0], rank) == sum(i % num_ranks == rank for i in range(num_rows))
