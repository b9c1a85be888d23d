"""Where codecs used to fail: overflow under feedback, sampled thresholds, zeros, and numbers that are not whole."""

import pytest
import torch

from pliant.codecs import (
    Bf16,
    BlockTopK,
    ChunkTopK,
    Dct,
    Fp8,
    Fp16,
    Int4,
    MinMax8,
    Natural,
    Qsgd,
    RandomK,
    Sigma2,
    Sign,
    Ternary,
    TopK,
    codec_from,
    encode_feedback,
)
from pliant.spec import CodecSpec

QUANTIZERS = [Bf16(), Fp16(), Fp8(), Int4(), MinMax8(), Natural(), Qsgd(), Qsgd(bits=2), Sigma2(), Sign(), Ternary()]
SPARSIFIERS = [TopK(), BlockTopK(), ChunkTopK(), RandomK(), Dct()]
SAMPLED = TopK(ratio=0.25, sampled=1)


def encode(codec, x, seed=1):
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, seed)
    return payload


def decode(codec, payload, numel):
    out = torch.empty(numel)
    codec.decode(payload, out)
    return out


def feed_back(codec, x, residual):
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8)
    encode_feedback(codec, x, residual, payload, 1)
    return decode(codec, payload, x.numel())


@pytest.mark.parametrize("codec", QUANTIZERS, ids=str)
def test_a_sum_that_overflows_poisons_the_payload_but_not_the_residual(codec):
    x, residual = torch.full((3000,), 3e38), torch.full((3000,), 3e38)

    assert not feed_back(codec, x, residual).isfinite().all()
    assert torch.equal(residual, x)


@pytest.mark.parametrize("codec", SPARSIFIERS, ids=str)
def test_a_sum_that_overflows_is_not_kept_by_a_sparsifier(codec):
    """More elements overflow than are sent, and none must poison the steps after."""
    x, residual = torch.full((30_000,), 3e38), torch.full((30_000,), 3e38)

    assert not feed_back(codec, x, residual).isfinite().all()
    assert residual.isfinite().all()
    assert feed_back(codec, torch.ones(30_000), residual).isfinite().all()


def test_fp16_recovers_from_a_gradient_beyond_its_range():
    residual = torch.full((100,), 1e-4)

    assert feed_back(Fp16(), torch.full((100,), 1e5), residual).isinf().all()  # GradScaler skips this step
    assert torch.equal(residual, torch.full((100,), 1e-4))
    assert feed_back(Fp16(), torch.ones(100), residual).isfinite().all()


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_does_not_lose_what_is_not_finite(seed):
    x = torch.randn(5000, generator=torch.Generator().manual_seed(seed))
    x[4999] = torch.nan
    assert not decode(SAMPLED, encode(SAMPLED, x), 5000).isfinite().all()


@pytest.mark.parametrize("column_scale", [100.0, 0.01])
def test_a_sample_is_not_fooled_by_the_columns_of_a_matrix(column_scale):
    x = torch.randn(1000, 512)
    x[:, ::64] *= column_scale
    codec = TopK(ratio=0.01, sampled=1)
    chosen = codec.indices(encode(codec, x.view(-1)))

    filled = chosen[chosen >= 0]
    assert filled.numel() > 0.8 * chosen.numel()
    assert filled.max() > 0.8 * x.numel()


def test_a_small_vector_is_searched_exactly():
    x = torch.randn(2000)
    assert torch.equal(encode(TopK(sampled=1), x), encode(TopK(), x))


@pytest.mark.parametrize("codec", [Qsgd(bits=8), Qsgd(bits=4), Qsgd(bits=2), Ternary()], ids=str)
def test_rounding_at_random_keeps_every_zero(codec):
    x = torch.zeros(4_000_000)
    x[::512] = 1.0
    for seed in range(4):
        out = decode(codec, encode(codec, x, seed), x.numel())
        assert int(((x == 0) & (out != 0)).sum()) == 0


@pytest.mark.parametrize("bits", [3.999, 4.7])
def test_a_count_that_is_not_whole_is_refused(bits):
    assert codec_from(CodecSpec(name="qsgd", settings={"bits": 4.0})) == Qsgd(bits=4)
    with pytest.raises(ValueError, match="whole number"):
        codec_from(CodecSpec(name="qsgd", settings={"bits": bits}))
