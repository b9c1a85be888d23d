"""What is special to one codec."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from pliant.codecs import (
    ChunkTopK,
    Dct,
    Fp8,
    Int4,
    MinMax8,
    Natural,
    Qsgd,
    Sigma2,
    Sign,
    TopK,
    all_finite,
    codec_from,
    finite,
    finite_flag,
    first_nonfinite,
    nonfinite_place,
    tensor_hash,
)
from pliant.spec import CodecSpec


def roundtrip(codec, x, seed=1):
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, seed)
    out = torch.empty_like(x)
    codec.decode(payload, out)
    return out


def test_minmax8_keeps_zero_constants_and_half_a_step():
    x = torch.randn(4096)
    x[5] = 0
    out = roundtrip(MinMax8(), x)
    step = (x.view(2, -1).amax(1) - x.view(2, -1).amin(1)) / 255
    assert out[5] == 0
    assert ((out - x).abs().view(2, -1).amax(1) <= 0.5001 * step).all()
    assert torch.equal(roundtrip(MinMax8(), torch.full((100,), 0.1)), torch.full((100,), 0.1))


@pytest.mark.parametrize("scale", [1e-8, 1e-20, 1e-30])
def test_minmax8_has_no_cliff_at_small_ranges(scale):
    x = torch.randn(2048) * scale
    assert (roundtrip(MinMax8(), x) - x).abs().max() <= 0.5001 * (x.max() - x.min()) / 255


@pytest.mark.parametrize("codec", [MinMax8(), Qsgd(), Qsgd(bits=2), Sign(), Int4(), Fp8(), Natural(), Dct()], ids=str)
@pytest.mark.parametrize("others", [[-1.0, 1e-38], [0.0], [-0.5], [0.5]])
def test_the_largest_float_does_not_become_infinite(codec, others):
    x = torch.tensor([1.0, *others]) * torch.finfo(torch.float32).max
    for sign in (1, -1):
        assert roundtrip(codec, sign * x).isfinite().all()


def test_minmax8_offset_block_does_not_wrap():
    x = 1000 + 5e-4 * torch.rand(2048)
    step = (x.max() - x.min()) / 255
    assert (roundtrip(MinMax8(), x) - x).abs().max() <= 0.5 * step + 1e-4 * 2**-10  # half of a float32 step at 1000


@pytest.mark.parametrize("seed", range(5))
def test_minmax8_never_wraps_at_the_ends(seed):
    x = torch.rand(20_000 * 32, generator=torch.Generator().manual_seed(seed)) - torch.rand(1)
    blocks = x.view(-1, 32)
    blocks[: 20_000 // 2] = (blocks[: 20_000 // 2] * 16).round()  # ties
    step = (blocks.amax(1) - blocks.amin(1)) / 255
    assert ((roundtrip(MinMax8(block=32), x) - x).view(-1, 32).abs().amax(1) <= 0.502 * step).all()


def test_natural_gives_powers_of_two_around_x():
    x = torch.tensor([3.0, -0.75, 1.0, 0.0, 5e-3, -2.0])
    out = roundtrip(Natural(), x)
    mantissa, _ = torch.frexp(out[out != 0])
    assert (mantissa.abs() == 0.5).all()
    assert torch.equal(out[[2, 3, 5]], x[[2, 3, 5]])


def test_sizes_are_the_bits_promised():
    numel = 1 << 20
    assert Sign().nbytes(numel) * 8 / numel < 1.04
    assert Qsgd(bits=4).nbytes(numel) * 8 / numel < 4.1
    assert MinMax8().nbytes(numel) / numel < 1.01


def test_topk_ties_go_to_the_lower_index():
    payload = torch.empty(16, dtype=torch.uint8)
    TopK(ratio=0.5).encode(torch.tensor([1.0, -1.0, 1.0, 1.0]), payload, 0)
    assert TopK().indices(payload).tolist() == [0, 1]


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(ValueError, match="no codec 'gzip'"):
        codec_from(CodecSpec(name="gzip"))
    with pytest.raises(ValueError, match="no setting 'level'"):
        codec_from(CodecSpec(name="qsgd", settings={"level": 3}))


def test_finite_scan_names_the_first():
    x = torch.randn(10_000)
    assert all_finite(x)
    assert first_nonfinite(x) == -1
    x[7001] = torch.nan
    x[9000] = torch.inf
    assert first_nonfinite(x) == 7001
    assert not all_finite(x.double())
    assert first_nonfinite(x.to(torch.bfloat16)) == 7001


@pytest.mark.parametrize("numel", [0, 1, 7, 256, 1023, 1024, 1025, 1792, 5000, 8192, 20224])
def test_what_a_device_finds_is_what_the_host_finds(numel):
    generator = torch.Generator().manual_seed(numel)
    for count in range(4):
        x = torch.randn(numel, generator=generator)
        for value in (torch.nan, torch.inf, -torch.inf)[:count]:
            x[torch.randint(max(1, numel), (min(1, numel),), generator=generator)] = value
        assert int(nonfinite_place(x)) == first_nonfinite(x)
        assert bool(finite_flag(x)) == all_finite(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_finite_scan_in_pieces_misses_none(dtype, monkeypatch):
    monkeypatch.setattr(finite, "_PIECE", 4)
    x = torch.ones(5, 2, dtype=dtype)
    assert all_finite(x)
    for k in range(10):
        y = x.clone()
        y.view(-1)[k] = torch.nan
        assert not all_finite(y)
        assert not all_finite(y.T)  # not contiguous


def test_changes_of_two_bits_never_cancel_out():
    x = torch.randn(5).numpy()
    hashes = set()
    for one, other in combinations_with_replacement(range(160), 2):
        y = x.copy()
        for bit in {one, other}:
            y.view(np.uint32)[bit // 32] ^= np.uint32(1 << bit % 32)
        hashes.add(tensor_hash(torch.from_numpy(y)) % 2**63)  # as replicas are compared
    assert len(hashes | {tensor_hash(torch.from_numpy(x)) % 2**63}) == 160 * 161 // 2 + 1


def test_hash_sees_every_bit_and_every_place():
    x = torch.randn(1000)
    hashes = {tensor_hash(x)}
    for place in (0, 1, 63, 64, 500, 999):
        y = x.clone()
        y.view(torch.int32)[place] ^= 1
        hashes.add(tensor_hash(y))
    hashes.add(tensor_hash(x.flip(0)))
    hashes.add(tensor_hash(x[:999]))
    assert len(hashes) == 9
    assert tensor_hash(x) == tensor_hash(x.clone())
    assert tensor_hash(torch.ones(3, dtype=torch.bfloat16)) != tensor_hash(torch.zeros(3, dtype=torch.bfloat16))


def test_sigma2_is_exact_for_two_sizes_and_keeps_zeros():
    x = torch.tensor([3.0, -3.0, 0.25, -0.25, 0.25, -0.25, 0.25, 0.25])
    assert torch.equal(roundtrip(Sigma2(), x), x)
    sparse = torch.zeros(1024).index_fill_(0, torch.tensor([7, 900]), -5.0)
    assert torch.equal(roundtrip(Sigma2(), sparse), sparse)


def test_no_chunk_goes_without_its_share():
    x = torch.randn(5 * 64 + 20)
    x[64:128] *= 100  # of the whole, all the largest would lie here
    kept = (roundtrip(ChunkTopK(ratio=1 / 16, block=64, bits=16), x) != 0).split(64)
    assert [int(part.sum()) for part in kept] == [4, 4, 4, 4, 4, 2]


def test_a_chunk_of_nothing_but_the_largest_nan_is_poisoned():
    nan = torch.full((70,), 0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # the NaN that NVIDIA's GPUs make
    kept = roundtrip(ChunkTopK(ratio=1 / 16, block=64, bits=16), nan)
    assert kept.isnan().nonzero().view(-1).tolist() == [0, 1, 2, 3, 64]


def test_a_chunk_costs_its_places_and_two_bits_for_each_value():
    """At k of 4096: k (12 + 2) / 8 bytes, and two means for each 1024 values."""
    for kept in (32, 64, 128):
        assert ChunkTopK(ratio=kept / 4096).nbytes(1 << 20) == 256 * kept * 14 // 8 + 8 * (256 * kept // 1024)


@pytest.mark.parametrize("bits", [2, 8, 16])
def test_what_rounding_takes_from_chosen_values_is_owed(bits):
    codec, x, residual = ChunkTopK(ratio=0.1, block=128, bits=bits), torch.randn(500), torch.randn(500)
    wanted, payload = x + residual, torch.empty(codec.nbytes(500), dtype=torch.uint8)
    codec.encode_feedback(x, residual, payload, 1)
    sent = torch.zeros(500)
    codec.decode(payload, sent)
    places = codec.indices(payload, 500).long()
    assert torch.equal(sent.nonzero().view(-1), places)
    assert residual[places].any()
    torch.testing.assert_close(residual + sent, wanted, rtol=0, atol=1e-6)


def test_a_poisoned_choice_leaves_what_is_finite_in_the_residual():
    codec, x, residual = ChunkTopK(ratio=0.1, block=64), torch.full((640,), 3e38), torch.full((640,), 3e38)
    x[64:] = 1.0
    residual[64:] = 1.0
    payload = torch.empty(codec.nbytes(640), dtype=torch.uint8)
    codec.encode_feedback(x, residual, payload, 1)
    assert (residual[64:] == 2.0).all()
    assert (residual[:64] == 0).all()  # what has overflowed would poison later payloads too


def test_chunks_refuse_a_place_outside_of_the_vector():
    codec = ChunkTopK(ratio=1 / 16, block=64)
    x = torch.randn(70)
    payload = torch.empty(codec.nbytes(70), dtype=torch.uint8)
    codec.encode(x, payload, 1)
    payload[codec.value_codec.nbytes(5) + 4] = 63
    with pytest.raises(ValueError, match="outside of a vector of 70"):
        codec.decode(payload, x)


def test_dct_is_exact_for_what_is_made_of_few_cosines():
    i = torch.arange(1000, dtype=torch.float64) % 64
    x = 3 + 0.5 * torch.cos(torch.pi * (2 * i + 1) * 5 / 128) - 2 * torch.cos(torch.pi * (2 * i + 1) * 63 / 128)
    x = x[:960].float()  # a last block that is filled with zeros is not made of few
    torch.testing.assert_close(roundtrip(Dct(ratio=3 / 64), x), x, rtol=0, atol=1e-5)
    assert (roundtrip(Dct(ratio=2 / 64), x) - x).abs().max() > 0.4


@pytest.mark.parametrize("block", [1, 2, 7, 64, 256])
def test_dct_with_all_coefficients_is_the_identity(block):
    x = torch.randn(1000)
    torch.testing.assert_close(roundtrip(Dct(ratio=1.0, block=block), x), x, rtol=0, atol=3e-6)


def test_dct_refuses_a_damaged_payload():
    x = torch.randn(100)
    codec = Dct(ratio=1 / 16)
    payload = torch.empty(codec.nbytes(100), dtype=torch.uint8)
    codec.encode(x, payload, 1)
    codec.indices(payload, 100)[1, 2] = 64
    with pytest.raises(ValueError, match="frequency 64, which is outside of a block of 64"):
        codec.decode(payload, x)


def test_dct_adds_payloads_before_the_transform():
    x, codec = torch.randn(3, 1000), Dct(ratio=0.2, block=48)
    payloads = torch.empty(3, codec.nbytes(1000), dtype=torch.uint8)
    one_by_one, together = torch.zeros(1000), torch.empty(1000)
    for row, payload in zip(x, payloads, strict=True):
        codec.encode(row, payload, 1)
        codec.decode_add(payload, one_by_one)
    codec.decode_sum(payloads, together)
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-5)
