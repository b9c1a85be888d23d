"""What every codec must obey."""

import dataclasses

import pytest
import torch
from hypothesis import given, strategies as st

from pliant.codecs import (
    BlockTopK,
    FusedFeedback,
    SummableCodec,
    TopK,
    codec_class,
    codec_from,
    decay_residual,
    encode_feedback,
    spec_of,
)
from pliant.layouts.payloads import granularity
from pliant.spec.codecs import CODECS as FACTS
from tables import CODECS, KINDS, SIZES, default_dtype, vector

rows = pytest.mark.parametrize("codec", CODECS, ids=str)


def encode(codec, x, seed=1):
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, seed)
    return payload


def decode(codec, payload, numel):
    out = torch.full((numel,), 7.0)
    codec.decode(payload, out)
    return out


@pytest.mark.parametrize("codec", [c for c in CODECS if hasattr(c, "ratio") and not getattr(c, "sampled", 0)], ids=str)
@given(numel=SIZES)
def test_no_less_is_chosen_than_was_asked_for(codec, numel):
    """Of equal elements, whichever are chosen, a part of their square that is the ratio or more."""
    x = torch.ones(numel)
    assert (x - decode(codec, encode(codec, x), numel)).square().sum() <= (1 - codec.ratio) * numel + 1e-3


@rows
@given(numel=SIZES, kind=KINDS)
def test_finite_in_finite_out_and_the_same_twice(codec, numel, kind):
    if codec.name == "fp16" and kind in ("huge", "offset"):
        kind = "normal"  # fp16 overflows by definition
    x = vector(kind, numel, 3)
    before = x.clone()
    payload = encode(codec, x)

    assert torch.equal(x, before)
    assert torch.equal(payload, encode(codec, x))
    out = decode(codec, payload, numel)
    assert out.isfinite().all()
    if kind == "zero":
        assert (out == 0).all()
    acc = torch.ones(numel)
    codec.decode_add(payload, acc)
    torch.testing.assert_close(acc, 1 + out)


@rows
@given(bad=st.sampled_from([float("nan"), float("inf"), float("-inf")]), where=st.integers(0, 4999))
def test_what_is_not_finite_is_seen_by_everybody(codec, bad, where):
    x = vector("normal", 5000, 1)
    x[where] = bad
    assert not decode(codec, encode(codec, x), 5000).isfinite().all()
    assert not decode(codec, encode(codec, torch.full((5000,), bad)), 5000).isfinite().all()


@rows
def test_nothing_is_nothing(codec):
    assert codec.nbytes(0) == 0
    assert decode(codec, encode(codec, torch.empty(0)), 0).numel() == 0


@rows
@given(numel=SIZES)
def test_parts_cut_at_the_granularity_are_coded_alone(codec, numel):
    if codec.name in ("topk", "blocktopk", "randomk", "chunktopk") or codec.unbiased:
        return  # a choice among all elements, random numbers by place, or values in one codec depend on the whole
    x = vector("normal", numel, 5)
    cut = numel // 2 // codec.granularity * codec.granularity
    whole = decode(codec, encode(codec, x), numel)
    halves = [decode(codec, encode(codec, part), part.numel()) for part in (x[:cut].clone(), x[cut:].clone())]
    assert torch.equal(whole, torch.cat(halves))


@rows
def test_unbiased_or_contractive(codec):
    x = vector("normal", 3000, 9)
    if codec.unbiased:
        draws = torch.stack([decode(codec, encode(codec, x, seed), 3000) for seed in range(400)])
        # Without bias the squared error of a mean of 400 is a 400th of the variance, here summed over 3000 elements.
        ratio = float((draws.mean(0) - x).square().sum() * 400 / draws.var(0).sum())
        assert 0.85 < ratio < 1.15
    else:
        error = (x - decode(codec, encode(codec, x), 3000)).square().sum() / x.square().sum()
        assert error < 1
        if codec.name == "dct":
            assert error <= 1 - codec.ratio
        if codec.name == "sigma2":  # the least of four levels for normal numbers is 0.1175, of two 0.363
            assert error < 0.125
        if codec.name in ("topk", "blocktopk"):
            assert error <= 1 - codec.ratio * 0.9


@rows
@given(numel=SIZES, kind=KINDS, decay=st.sampled_from([1.0, 0.75]))
def test_feedback_telescopes(codec, numel, kind, decay):
    """What was sent, and what is owed, is what came in: of each, decay^t is left after t more exchanges."""
    if kind in ("huge", "denormal") or codec.name == "fp16":
        kind = "normal"
    residual, sent, total = torch.zeros(numel), torch.zeros(numel), torch.zeros(numel, dtype=torch.float64)
    payload = torch.empty(codec.nbytes(numel), dtype=torch.uint8)
    for step in range(6):
        x = vector(kind, numel, step)
        decay_residual(residual, x, decay)
        encode_feedback(codec, x, residual, payload, step)
        codec.decode_add(payload, sent.mul_(decay))
        total.mul_(decay).add_(x)
    atol = 1e-5 * max(1.0, float(total.abs().max() if numel else 0))
    torch.testing.assert_close((sent + residual).double(), total, rtol=1e-4, atol=atol)


@rows
def test_a_poisoned_step_leaves_the_residual_alone(codec):
    x, residual = vector("normal", 500, 1), vector("normal", 500, 2)
    before = residual.clone()
    x[17] = torch.inf
    decay_residual(residual, x, 0.5)
    encode_feedback(codec, x, residual, torch.empty(codec.nbytes(500), dtype=torch.uint8), 1)
    assert torch.equal(residual, before)


@rows
def test_the_fused_feedback_is_the_plain_one(codec):
    if not isinstance(codec, FusedFeedback):
        return
    for numel in (1, 100, 2049, 5000):
        x, residual = vector("normal", numel, 1), vector("normal", numel, 2)
        y, expected = x + residual, torch.empty(codec.nbytes(numel), dtype=torch.uint8)
        codec.encode(y, expected, 3)
        payload = torch.empty_like(expected)
        codec.encode_feedback(x, residual, payload, 3)
        assert torch.equal(payload, expected)
        torch.testing.assert_close(residual, y - decode(codec, payload, numel), rtol=0, atol=1e-7)


@rows
def test_another_default_dtype_of_torch_changes_nothing(codec):
    x, numel = vector("normal", 3000, 1), 3000
    payload, residual, out = encode(codec, x), vector("normal", numel, 2), decode(codec, encode(codec, x), numel)
    owed = residual.clone()
    encode_feedback(codec, x, owed, torch.empty_like(payload), 1)
    with default_dtype(torch.bfloat16):
        found, again = torch.empty_like(payload), torch.empty_like(out)
        codec.encode(x, found, 1)
        codec.decode(found, again)
        encode_feedback(codec, x, residual, torch.empty_like(payload), 1)
    assert torch.equal(found, payload)
    assert torch.equal(again, out)
    assert torch.equal(residual, owed)


@rows
def test_settings_survive_the_plan(codec):
    assert codec_from(spec_of(codec)) == codec


@rows
def test_bad_tensors_are_refused(codec):
    with pytest.raises(TypeError, match="float32"):
        codec.encode(torch.zeros(8, dtype=torch.float64), torch.empty(codec.nbytes(8), dtype=torch.uint8), 0)
    with pytest.raises(ValueError, match="payload has"):
        codec.encode(torch.zeros(8), torch.empty(codec.nbytes(8) + 1, dtype=torch.uint8), 0)
    with pytest.raises(ValueError, match="flatten"):
        codec.encode(torch.zeros(4, 2), torch.empty(codec.nbytes(8), dtype=torch.uint8), 0)


@rows
def test_sums_survive_where_promised(codec):
    if not isinstance(codec, SummableCodec):
        return
    x, y = vector("normal", 1000, 1), vector("normal", 1000, 2)
    total, other = encode(codec, x, 4), encode(codec, y, 4)
    codec.summands(total).add_(codec.summands(other))
    expected = decode(codec, encode(codec, x, 4), 1000) + decode(codec, encode(codec, y, 4), 1000)
    torch.testing.assert_close(decode(codec, total, 1000), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("codec", [TopK(ratio=0.1), BlockTopK(ratio=0.1, block=8)], ids=str)
@pytest.mark.parametrize("place", [-7, 100, 2**31 - 1])
def test_a_damaged_payload_cannot_write_elsewhere(codec, place):
    payload = encode(codec, vector("normal", 100, 1))
    codec.indices(payload)[0] = place
    around = torch.zeros(300)
    with pytest.raises(ValueError, match="outside of a vector of 100"):
        codec.decode_add(payload, around[100:200])
    assert (around[:100] == 0).all()
    assert (around[200:] == 0).all()


@rows
def test_a_residual_of_another_size_is_refused(codec):
    if not isinstance(codec, FusedFeedback):
        return
    payload = torch.empty(codec.nbytes(100), dtype=torch.uint8)
    with pytest.raises(ValueError, match="residual"):
        codec.encode_feedback(torch.zeros(100), torch.zeros(99), payload, 0)


@pytest.mark.parametrize("name", FACTS)
def test_the_table_and_the_class_of_a_codec_agree(name):
    facts, made = FACTS[name], codec_class(name)
    defaults = {field.name: field.default for field in dataclasses.fields(made)}
    assert made.name == name
    assert {setting: (type(of.default), of.default) for setting, of in facts.settings.items()} == {
        setting: (type(default), default) for setting, default in defaults.items()
    }
    codec = made()
    assert granularity(spec_of(codec)) == codec.granularity
