"""Overheads of machines: what a probe writes reaches every prediction."""

from dataclasses import replace

import pytest

from pliant.netmodel import PRESETS, Overheads
from pliant.spec import Machine, from_json, to_json
from pliant.spec.codecs import CODECS

MEASURED = Machine(
    name="m",
    message_s=3e-5,
    add_bytes_per_s=5e9,
    memory_bytes_per_s=2e10,
    loopback_bytes_per_s=4e9,
    encode_s_per_element={"sign": 1e-9},
    decode_s_per_element={"sign": 3e-9},
)


def test_what_a_machine_says_is_taken_and_the_rest_scaled():
    base, found = Overheads(), Overheads.of(MEASURED)
    assert (found.message_s, found.reduce_bytes_per_s, found.loopback_bytes_per_s) == (3e-5, 5e9, 4e9)
    assert (found.encode_s["sign"], found.add_s["sign"]) == (1e-9, 3e-9)
    assert found.feedback_s["sign"] == pytest.approx(base.feedback_s["sign"] * 1e-9 / base.encode_s["sign"])
    assert found.decode_s["sign"] == pytest.approx(base.decode_s["sign"] * 3e-9 / base.add_s["sign"])
    assert found.encode_s["qsgd"] == base.encode_s["qsgd"]
    assert (found.wire_factor, found.sharing, found.bucket_s) == (base.wire_factor, base.sharing, base.bucket_s)
    assert "machine m" in found.provenance


def test_a_host_of_one_rank_says_nothing_of_loopback():
    alone = Machine(name="m", message_s=0, add_bytes_per_s=1, memory_bytes_per_s=1)
    assert Overheads.of(alone).loopback_bytes_per_s == Overheads().loopback_bytes_per_s


def test_cpu_time_of_messages_is_the_default_where_a_file_lacks_it():
    base, found = Overheads(), Overheads.of(MEASURED)
    assert (found.message_cpu_s, found.byte_cpu_s) == (base.message_cpu_s, base.byte_cpu_s)
    found = Overheads.of(replace(MEASURED, message_cpu_s=2e-5, byte_cpu_s=1e-10))
    assert (found.message_cpu_s, found.byte_cpu_s) == (2e-5, 1e-10)
    for name in ("message_cpu_s", "byte_cpu_s"):
        with pytest.raises(ValueError, match="a time below 0"):
            replace(MEASURED, **{name: -1.0})
        with pytest.raises(ValueError, match="an overhead is negative"):
            Overheads(**{name: -1.0})


def test_no_time_is_below_zero():
    with pytest.raises(ValueError, match="a time below 0"):
        Machine(name="m", message_s=0, add_bytes_per_s=1, memory_bytes_per_s=1, loopback_bytes_per_s=-1)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_machine_like_one_that_was_measured(name):
    machine = PRESETS[name]
    assert from_json(Machine, to_json(machine)) == machine
    assert set(machine.encode_s_per_element) == set(CODECS)
    found = Overheads.of(machine)
    assert all(found.encode_s[codec] <= Overheads().encode_s[codec] for codec in CODECS)


def test_the_preset_of_a_core_has_the_defaults():
    found, base = Overheads.of(PRESETS["cpu-core"]), Overheads()
    assert found.coefficients() == pytest.approx(base.coefficients())


@pytest.mark.parametrize("missing", ["encode_s", "add_s"])
def test_every_codec_has_a_time(missing):
    with pytest.raises(ValueError, match=f"{missing} must have a time for each codec"):
        Overheads(**{missing: {"sign": 1.0}})
