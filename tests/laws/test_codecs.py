"""What every codec must obey."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pliant.codecs import BlockTopK, FusedFeedback, SummableCodec, TopK, codec_from, encode_feedback, spec_of
from pliant.codecs.kernels import native, twins
from tables import CODECS

rows = pytest.mark.parametrize("codec", CODECS, ids=str)

SIZES = st.sampled_from([0, 1, 2, 7, 31, 32, 33, 64, 1000, 1024, 1025, 2048, 2049, 5000])
KINDS = st.sampled_from(["normal", "huge", "denormal", "constant", "zero", "offset", "sparse", "tiny range"])


LARGEST = torch.finfo(torch.bfloat16).max  # the next float32 that a bfloat16 cannot hold is not far


def vector(kind: str, numel: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=g)
    return {
        "normal": x,
        "huge": (x * 2e38).clamp(-LARGEST, LARGEST),
        "denormal": x * 1e-42,
        "constant": torch.full((numel,), 0.5),
        "zero": torch.zeros(numel),
        "offset": 1000 + 5e-4 * x,
        "sparse": x * (torch.rand(numel, generator=g) < 0.05),
        "tiny range": x * 1e-8,
    }[kind]


def encode(codec, x, seed=1):
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, seed)
    return payload


def decode(codec, payload, numel):
    out = torch.full((numel,), 7.0)
    codec.decode(payload, out)
    return out


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
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@given(where=st.integers(0, 4999))
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
    if codec.name in ("topk", "blocktopk", "randomk") or codec.unbiased:
        return  # a choice among all elements, or random numbers by place, depend on the whole on purpose
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
        if codec.name in ("topk", "blocktopk"):
            assert error <= 1 - codec.ratio * 0.9


@rows
@given(numel=SIZES, kind=KINDS)
def test_feedback_telescopes(codec, numel, kind):
    if kind in ("huge", "denormal") or codec.name == "fp16":
        kind = "normal"
    residual, sent, total = torch.zeros(numel), torch.zeros(numel), torch.zeros(numel)
    scratch, payload = torch.empty(numel), torch.empty(codec.nbytes(numel), dtype=torch.uint8)
    for step in range(6):
        x = vector(kind, numel, step)
        encode_feedback(codec, x, residual, payload, step, scratch)
        codec.decode_add(payload, sent)
        total += x
    torch.testing.assert_close(
        sent + residual, total, rtol=1e-4, atol=1e-5 * max(1.0, float(total.abs().max() if numel else 0))
    )


@rows
def test_a_poisoned_step_leaves_the_residual_alone(codec):
    x, residual = vector("normal", 500, 1), vector("normal", 500, 2)
    before = residual.clone()
    x[17] = torch.inf
    encode_feedback(codec, x, residual, torch.empty(codec.nbytes(500), dtype=torch.uint8), 1, torch.empty(500))
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


# - The C kernels against their twins in torch: equal to the bit, sums too


def both(function, *arguments):
    """Run the C kernel and its twin on copies; return what each has written."""
    results = []
    for module in (native, twins):
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        getattr(module, function)(*copies[:-1], **copies[-1])
        results.append([c for c in copies if isinstance(c, torch.Tensor)])
    return results


@given(numel=SIZES.filter(bool), kind=KINDS, feedback=st.booleans())
def test_kernels_equal_their_twins(numel, kind, feedback):
    x = vector(kind, numel, 1)
    residual = vector("normal", numel, 2) if feedback and kind != "huge" else None
    acc = vector("normal", numel, 3)
    cases = [("minmax8_encode", 12 * -(-numel // 64) + numel, (64, {}), "minmax8_decode", (64,))]
    for bits in (2, 4, 8):
        size = 4 * -(-numel // 64) + -(-numel * bits // 8)
        for stochastic in (True, False):
            extra = (64, bits, 99, {"stochastic": stochastic})
            cases.append(("levels_encode", size, extra, "levels_decode", (64, bits)))
    for encoder, nbytes, extra, decoder, shape in cases:
        payload = torch.zeros(nbytes, dtype=torch.uint8)
        fast, slow = both(encoder, x, residual, payload, *extra)
        for a, b in zip(fast, slow, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), (encoder, extra)
        encoded = fast[-1]
        for add in (True, False):
            fast, slow = both(decoder, encoded, acc, *shape, {"add": add})
            assert torch.equal(fast[1], slow[1]), (decoder, add)


@given(numel=SIZES.filter(bool), kind=KINDS)
def test_sign_kernels_equal_their_twins(numel, kind):
    x, acc = vector(kind, numel, 1), vector("normal", numel, 3)
    payload = torch.zeros(4 * -(-numel // 64) + -(-numel // 8), dtype=torch.uint8)
    fast, slow = both("sign_encode", x, None, payload, 64, {})
    assert torch.equal(fast[-1], slow[-1])
    encoded = fast[-1]
    for add in (True, False):
        fast, slow = both("sign_decode", encoded, acc, 64, {"add": add})
        assert torch.equal(fast[1], slow[1])


@given(numel=st.integers(1, 3000), kind=KINDS, share=st.floats(0.001, 1.0), stride=st.sampled_from([1, 1, 64]))
def test_selection_equals_its_twin(numel, kind, share, stride):
    x = vector(kind, numel, 4)
    k = max(1, int(share * numel))
    slots = torch.zeros(k, dtype=torch.int32), torch.zeros(k)
    fast, slow = both("topk_encode", x, *slots, stride, {})
    assert torch.equal(fast[1], slow[1])
    assert torch.equal(fast[2], slow[2])
    if stride == 1:
        kept = np.sort(np.abs(fast[2].numpy()))
        np.testing.assert_array_equal(kept, np.sort(np.sort(np.abs(x.numpy()))[-k:]))


@given(numel=SIZES.filter(bool), kind=KINDS, feedback=st.booleans(), bad=st.booleans())
def test_float_formats_equal_their_twins(numel, kind, feedback, bad):
    x, acc = vector(kind, numel, 1), vector("normal", numel, 3)
    if bad:
        x[numel // 2] = torch.nan
    residual = vector("normal", numel, 2) if feedback and kind != "huge" else None
    for name, extra in (("natural", (64, 99)), ("fp8", (64,))):
        payload = torch.zeros(4 * -(-numel // 64) + numel, dtype=torch.uint8)
        fast, slow = both(f"{name}_encode", x, residual, payload, *extra, {})
        for a, b in zip(fast, slow, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), name
        encoded = fast[-1]
        for add in (True, False):
            fast, slow = both(f"{name}_decode", encoded, acc, 64, {"add": add})
            assert torch.equal(fast[1].nan_to_num(), slow[1].nan_to_num()), (name, add)


@given(numel=st.integers(1, 3000), kind=KINDS, block=st.sampled_from([1, 7, 16, 128]))
def test_block_kernels_equal_their_twins(numel, kind, block):
    x = vector(kind, numel, 4)
    num_blocks = -(-numel // block)
    fast, slow = both("block_rms", x, torch.zeros(num_blocks), block, {})
    torch.testing.assert_close(fast[1], slow[1], rtol=1e-6, atol=1e-45)
    chosen = torch.randperm(num_blocks)[: -(-num_blocks // 3)].sort().values.int()
    fast, slow = both("blocks_gather", x, chosen, torch.zeros(chosen.numel() * block), block, {})
    values = fast[2]
    assert torch.equal(values, slow[2])
    for name, arguments in (("blocks_add", (chosen, values)), ("blocks_clear", (chosen,))):
        fast, slow = both(name, vector("normal", numel, 5), *arguments, block, {})
        assert torch.equal(fast[0], slow[0])


@pytest.mark.parametrize("values", ["normal", "sparse", "constant", "few", "rising", "nan"])
@pytest.mark.parametrize("k", [1, 500, 2000, 90_000])
def test_selection_from_many_equals_its_twin(values, k):
    numel = 100_003
    x = vector("normal" if values in ("few", "nan") else values, numel, 4) if values != "rising" else None
    x = torch.arange(numel).float() if x is None else x
    if values == "few":
        x = (4 * x).round()  # many ties at the threshold
    if values == "nan":
        x[::1000] = torch.nan
    fast, slow = both("topk_encode", x, torch.zeros(k, dtype=torch.int32), torch.zeros(k), 1, {})
    assert torch.equal(fast[1], slow[1])
    assert torch.equal(fast[2].nan_to_num(), slow[2].nan_to_num())


@given(num_bytes=st.integers(0, 300))
def test_the_hash_equals_its_twin(num_bytes):
    x = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    assert native.hash_bytes(x) == twins.hash_bytes(x)


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


@given(numel=st.integers(1, 3000), share=st.floats(0.001, 1.0), seed=st.integers(0, 2**32 - 1))
def test_random_places_equal_their_twin_and_never_repeat(numel, share, seed):
    k = max(1, int(share * numel))
    x = vector("normal", numel, 4)
    fast, slow = both("randomk_gather", x, torch.zeros(k), seed, {})
    assert torch.equal(fast[1], slow[1])
    ones = torch.zeros(numel)
    native.randomk_add(ones, torch.ones(k), seed)
    assert int(ones.sum()) == k
    assert float(ones.max()) == 1.0
