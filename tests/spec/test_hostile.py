"""Files that anybody may have written: a record or a ValueError that names the file, and never a wait."""

import json
import math
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from test_records import PLAN, RECORDS, TOPOLOGY

from pliant.planner.genome import Gene, Genome
from pliant.simulator import Overheads
from pliant.spec import (
    Event,
    Host,
    Link,
    Match,
    Schedule,
    TensorSpec,
    Topology,
    Workload,
    from_json,
    load,
    save,
    to_json,
)
from pliant.spec.reading import MOST_BYTES, parse_json

AB, LINK = (Host(name="a"), Host(name="b")), Link(source="a", target="b", bytes_per_s=1.0, latency_s=0.0)
EVERY = [*RECORDS, Overheads(), Genome(base=Gene("exact", {"bits": 32}))]
KINDS = sorted({type(record) for record in EVERY}, key=lambda kind: kind.__name__)
TEXTS = {
    "empty": b"",
    "blank": b" \n",
    "cut off": b'{"pliant": "%s", "form',
    "nested lists": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "closed and nested": b"[" * 100_000 + b"]" * 100_000,
    "not UTF-8": b'{"pliant": "\xff\xfe"}',
    "UTF-16": '{"pliant": "%s"}'.encode("utf-16"),
    "zeros": bytes(1000),
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "another record": b'{"pliant": "Nothing", "format": 1}',
    "no format": b'{"pliant": "%s"}',
    "format of another kind": b'{"pliant": "%s", "format": [1]}',
    "a name twice": b'{"pliant": "%s", "format": 1, "format": 1}',
    "NaN": b'{"pliant": "%s", "format": 1, "name": NaN}',
    "infinity": b'{"pliant": "%s", "format": 1, "name": -Infinity}',
    "beyond doubles": b'{"pliant": "%s", "format": 1, "name": 1e999}',
    "a long number": b'{"pliant": "%s", "format": 1, "name": ' + b"9" * 100_000 + b"}",
    "beyond 64 bits": b'{"pliant": "%s", "format": 1, "name": 9223372036854775808}',
    "half a pair": b'{"pliant": "%s", "format": 1, "name": "\\ud800"}',
    "a long name": b'{"pliant": "%s", "format": 1, "' + b"x" * 100_000 + b'": 1}',
    "a path": b'{"pliant": "../../etc/passwd", "format": 1}',
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_file_that_is_no_record_is_refused_by_its_name(kind, text, tmp_path):
    path = tmp_path / "given.json"
    path.write_bytes(TEXTS[text].replace(b"%s", kind.__name__.encode()))
    with pytest.raises(ValueError, match=r"given\.json: ") as caught:
        load(kind, path)
    assert len(str(caught.value)) < 1000


def test_what_is_no_file_is_refused_without_a_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in (tmp_path, tmp_path / "pipe", tmp_path / "link", "/dev/zero", "/dev/null"):
        with pytest.raises(ValueError, match="an ordinary file was expected"):
            load(type(PLAN), name)


def test_the_largest_file_is_stated(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # without a byte on the disk
    with pytest.raises(ValueError, match=r"large\.json has 256 MiB, but of such a file at most 256 are read"):
        load(type(PLAN), tmp_path / "large.json")


def places(value, at=()):
    yield at
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


def put(value, at, new):
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


HUGE = Host(name="a", num_ranks=10**12)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_value_at_any_place_is_taken_or_refused(data):
    record = data.draw(st.sampled_from(EVERY))
    body = json.loads(to_json(record))
    at = data.draw(st.sampled_from(list(places(body))))
    text = json.dumps(put(body, at, data.draw(VALUES)))
    try:
        found = from_json(type(record), text)
    except ValueError:
        return
    assert from_json(type(record), to_json(found)) == found  # what is taken can be written again, and so is finite
    hash(found)


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_parsed_or_refused(text):
    try:
        found = parse_json(text)
    except ValueError:
        return
    assert parse_json(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Host(name="a", send_bytes_per_s=math.nan), "not finite"),
        (lambda: Host(name="a", delay_s=math.inf), "not finite"),
        (lambda: Link(source="a", target="b", bytes_per_s=-1.0, latency_s=0.0), "finite and at least 0"),
        (lambda: type(TOPOLOGY)(hosts=(HUGE,)), "at most"),
        (lambda: TensorSpec(name="x", shape=(-3,), dtype="f", layer="L", ready_s=0.0), "at least 0"),
        (lambda: TensorSpec(name="x", shape=(2**40, 2**40), dtype="f", layer="L", ready_s=0.0), "at most"),
        (lambda: TensorSpec(name="x", shape=(3,), dtype="f", layer="L", ready_s=math.nan), "finite"),
        (lambda: Workload(name="w", tensors=(), forward_s=-1.0, backward_s=0.0), "finite and at least 0"),
        (lambda: Workload(name="w", tensors=(), forward_s=1.0, backward_s=0.0, batch_size=0), "at least 1"),
        (lambda: Event(rank=-1, step=0, kind="wait", name="e", start_s=0.0, end_s=0.0), "at least 0"),
        (lambda: Event(rank=0, step=0, kind="wait", name="e", start_s=1.0, end_s=0.0), "not before its start"),
        (lambda: Event(rank=0, step=0, kind="wait", name="e", start_s=0.0, end_s=0.0, sent_bytes=-1), "less than 0"),
        (lambda: Topology(hosts=AB, links=(LINK, replace(LINK, bytes_per_s=2.0))), "two links from 'a' to 'b'; leave"),
        (lambda: Topology(hosts=AB, links=(replace(LINK, target="a"),)), "a link from 'a' to itself"),
        (lambda: Match(min_numel=-1), "neither can be negative"),
        (lambda: Match(min_numel=10, max_numel=9), "for 10 to 9 elements; .* the first is at most the second"),
        (lambda: Schedule(name="s", num_ranks=0, num_blocks=1, rounds=()), "ranks are 1 to"),
    ],
)  # fmt: skip
def test_records_with_figures_that_cannot_be(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_saved_record_is_still_a_file_of_anybody(tmp_path):
    save(PLAN, tmp_path / "plan.json")
    raw = (tmp_path / "plan.json").read_bytes()
    (tmp_path / "plan.json").write_bytes(raw.replace(b"\n", b"\r\n"))  # as an editor elsewhere leaves it
    assert load(type(PLAN), tmp_path / "plan.json") == PLAN
