"""The C kernels against their twins in torch: equal to the bit."""

import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from pliant.codecs import kernels
from pliant.codecs.kernels import library, native, reference
from tables import KINDS, SIZES, vector


def both(function, *arguments):
    """Run the C kernel and its twin on copies; return what each has written."""
    results = []
    for module in (native, reference):
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


@given(numel=SIZES.filter(bool), kind=KINDS, feedback=st.booleans())
def test_sigma_kernels_equal_their_twins(numel, kind, feedback):
    x, acc = vector(kind, numel, 1), vector("normal", numel, 3)
    residual = vector("normal", numel, 2) if feedback and kind != "huge" else None
    payload = torch.zeros(8 * -(-numel // 96) + -(-numel // 4), dtype=torch.uint8)
    fast, slow = both("sigma_encode", x, residual, payload, 96, {})
    assert all(map(torch.equal, fast, slow))
    encoded = fast[-1]
    for add in (True, False):
        fast, slow = both("sigma_decode", encoded, acc, 96, {"add": add})
        assert torch.equal(fast[1], slow[1])


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


@given(
    numel=st.integers(1, 3000),
    kind=KINDS,
    share=st.floats(0.001, 1.0),
    stride=st.sampled_from([1, 61]),
    bad=st.booleans(),
)
def test_selection_equals_its_twin(numel, kind, share, stride, bad):
    x = vector(kind, numel, 4)
    if bad:
        x[-1] = torch.inf  # a sample may find enough before it
    k = max(1, int(share * numel))
    slots = torch.zeros(k, dtype=torch.int32), torch.zeros(k)
    fast, slow = both("topk_encode", x, *slots, stride, {})
    assert torch.equal(fast[1], slow[1])
    assert torch.equal(fast[2], slow[2])
    if stride == 1:
        kept = np.sort(np.abs(fast[2].numpy()))
        np.testing.assert_array_equal(kept, np.sort(np.sort(np.abs(x.numpy()))[-k:]))


@given(
    numel=st.integers(1, 3000),
    kind=KINDS,
    block=st.sampled_from([1, 7, 64, 1000, 4096]),
    share=st.floats(0.001, 1.0),
    bad=st.booleans(),
)
def test_the_selection_in_chunks_equals_its_twin(numel, kind, block, share, bad):
    x = vector(kind, numel, 4)
    if bad:
        x[numel // 2] = torch.nan
    kept, last = math.ceil(share * block), math.ceil(share * (numel % block))
    slots = torch.zeros(numel // block * kept + last, dtype=torch.int32), torch.zeros(numel // block * kept + last)
    fast, slow = both("chunks_encode", x, *slots, block, kept, {})
    assert torch.equal(fast[1], slow[1])
    assert torch.equal(fast[2].nan_to_num(), slow[2].nan_to_num())
    for start in range(0, numel, block):
        chunk = x[start : start + block]
        own = fast[2][(fast[1] >= start) & (fast[1] < start + block)]
        all_bits, own_bits = (
            part.view(torch.int32).bitwise_and(0x7FFFFFFF).sort(descending=True).values for part in (chunk, own)
        )
        assert torch.equal(own_bits, all_bits[: len(own)])
        assert len(own) == (kept if len(chunk) == block else last)


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


@given(n=st.integers(0, 40), m=st.sampled_from([1, 3, 511, 512, 1100]), r=st.integers(1, 5))
def test_low_rank_passes_equal_their_twins(n, m, r):
    x, residual = vector("normal", n * m, 1).view(n, m), vector("normal", n * m, 4).view(n, m)
    p, q = vector("normal", r * n, 2).view(r, n), vector("normal", r * m, 3).view(r, m)
    for name, arguments in {
        "low_rank_left": (x, residual, q, torch.full_like(p, torch.nan)),
        "low_rank_right": (x, p, torch.full_like(q, torch.nan)),
    }.items():
        fast, slow = both(name, *arguments, {})
        assert torch.equal(fast[0], slow[0])
        torch.testing.assert_close(fast[-1], slow[-1], rtol=1e-4, atol=1e-3)  # sums in another order
    fast, slow = both("low_rank_split", x, torch.full_like(residual, torch.nan), p, q, {})
    assert torch.equal(fast[0], slow[0])
    assert torch.equal(fast[1], slow[1])
    torch.testing.assert_close(fast[0], p.t() @ q)


@given(numel=st.integers(0, 9000), kind=KINDS, factor=st.sampled_from([1.0, 0.5, 1 / 3]), bad=st.booleans())
def test_scaling_equals_its_twin_and_finds_what_is_not_finite(numel, kind, factor, bad):
    x = vector(kind, numel, 1)
    bad = bad and numel > 0
    if bad:
        x[numel // 3] = torch.inf
    copy, wanted = x.clone(), x * factor
    assert native.scale(x, factor) == reference.scale(copy, factor) == (not bad)
    assert torch.equal(x, wanted)
    assert torch.equal(copy, wanted)


@given(num_bytes=st.integers(0, 300))
def test_the_hash_equals_its_twin(num_bytes):
    x = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    assert native.hash_bytes(x) == reference.hash_bytes(x)


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


@pytest.mark.parametrize(
    ("encoder", "header_bytes", "settings", "keywords"),
    [
        ("minmax8_encode", 12, (64,), {}),
        ("sign_encode", 4, (64,), {}),
        ("sigma_encode", 8, (64,), {}),
        ("levels_encode", 4, (64, 8, 9), {"stochastic": True}),
        ("natural_encode", 4, (64, 9), {}),
        ("fp8_encode", 4, (64,), {}),
    ],
)
def test_only_blocks_that_do_not_overflow_change_the_residual(encoder, header_bytes, settings, keywords):
    x, residual = torch.randn(256), torch.randn(256)
    x[70] = residual[70] = 3e38
    codes = {"sign_encode": 32, "sigma_encode": 64}.get(encoder, 256)
    payload = torch.zeros(4 * header_bytes + codes, dtype=torch.uint8)
    fast, slow = both(encoder, x, residual, payload, *settings, keywords)
    assert torch.equal(fast[1], slow[1])
    assert torch.equal(fast[1][64:128], residual[64:128])
    assert not (fast[1] == residual).view(4, 64).all(1)[[0, 2, 3]].any()


@given(num=st.integers(0, 300), few=st.sampled_from([1, 7, 1 << 40]), seed=st.integers(0, 9))
def test_distinct_keys_equal_their_twin(num, few, seed):
    keys = torch.randint(few, (num,), generator=torch.Generator().manual_seed(seed))
    for fast, slow in zip(native.distinct_keys(keys), reference.distinct_keys(keys), strict=True):
        assert torch.equal(fast, slow)
        assert fast.dtype == slow.dtype


def test_distinct_keys_are_found_among_many():
    keys = torch.randint(1 << 50, (50_000,)).repeat(2)  # the table of the kernel grows many times
    distinct, index = native.distinct_keys(keys)
    assert torch.equal(distinct, keys.unique())
    assert torch.equal(distinct[index], keys)


@given(num_bags=st.integers(0, 40), dim=st.sampled_from([1, 3, 16, 65]), weighted=st.booleans(), seed=st.integers(0, 9))
def test_kernels_of_rows_equal_their_twins(num_bags, dim, weighted, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, (num_bags,), generator=generator)
    num = int(lengths.sum())
    vectors = torch.randn(num_bags, dim, generator=generator)
    index = torch.randint(7, (num,), generator=generator, dtype=torch.int32)
    weights = torch.rand(num, generator=generator) if weighted else None
    fast, slow = both("add_rows", torch.zeros(7, dim), index, vectors, lengths, weights, {})
    torch.testing.assert_close(fast[0], slow[0], rtol=1e-6 * weighted, atol=1e-6 * weighted)
    keys = torch.randint(30, (num,), generator=generator)
    divided = [module.by_owner(keys, lengths, weights, 8, 4) for module in (native, reference)]
    for a, b in zip(*divided, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@given(num=st.integers(0, 20), dim=st.sampled_from([1, 3, 16, 65]), seed=st.integers(0, 9))
def test_updates_of_rows_equal_their_twins(num, dim, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, squares = torch.randn(20, dim, generator=generator), torch.rand(20, dim, generator=generator)
    slots, changes = torch.randperm(20, generator=generator)[:num], torch.randn(num, dim, generator=generator)
    for fast, slow in (
        both("subtract_rows", rows, slots, changes, {}),
        both("add_squares", squares, slots, changes, {}),
        both("subtract_ratios", rows, slots, changes, squares[slots], {"lr": 0.1, "eps": 1e-10}),
    ):
        assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


def test_a_row_that_is_not_there_is_told_and_nothing_changes():
    rows, slots, changes = torch.zeros(4, 3), torch.tensor([1, 4]), torch.ones(2, 3)
    for change in (
        native.subtract_rows,
        native.add_squares,
        lambda *its: native.subtract_ratios(*its, torch.ones(2, 3), lr=0.1, eps=1.0),
    ):
        with pytest.raises(IndexError, match="1 gradients are of rows outside of the 4 here"):
            change(rows, slots, changes)
        assert not rows.any()


def test_kernels_that_were_never_built_are_missed_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    with pytest.raises(library.KernelsMissingError, match=r"compiled kernels are missing.*pip install"):
        library._found()
    (tmp_path / "_cpu.so").touch()
    assert library._found() == tmp_path / "_cpu.so"


@pytest.mark.parametrize("there", ["nothing", "kernels of another machine"])
def test_where_kernels_cannot_be_loaded_their_twins_work_and_say_so_once(monkeypatch, tmp_path, there):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    if there != "nothing":
        (tmp_path / "_cpu.so").write_bytes(b"no library")
    x, payload = torch.randn(1000), torch.zeros(12 + 1000, dtype=torch.uint8)
    library.library.cache_clear()
    kernels._on_cpu.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"install.*torch does their work: the same results to the bit"):
            kernels.kernels_for(x).minmax8_encode(x, None, payload, 1000)
        kernels.kernels_for(x).minmax8_encode(x, None, payload, 1000)  # a second warning would be an error
    finally:
        library.library.cache_clear()
        kernels._on_cpu.cache_clear()
    expected = torch.zeros_like(payload)
    reference.minmax8_encode(x, None, expected, 1000)
    assert torch.equal(payload, expected)
