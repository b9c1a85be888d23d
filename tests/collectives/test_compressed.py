"""Scatter - reduce - gather: oracles, edges, and every byte counted."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from pliant.codecs import BlockTopK, Fp16, MinMax8, RandomK, Sign, TopK
from pliant.collectives import CompressedAverage, LowRankAverage, ShortVectorAverage, factor_shape
from pliant.comm import RecordedComm, run_world
from pliant.comm.wrapped import WrappedComm
from tables import CODECS

DENSE = [c for c in CODECS if not isinstance(c, (TopK, BlockTopK, RandomK))]


def vector(rank, numel, step=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(97 * rank + step))


@pytest.mark.parametrize("codec", DENSE, ids=str)
@settings(max_examples=5)
@given(
    size=st.integers(1, 4), numel=st.sampled_from([0, 1, 3, 700, 5000, 9001]), chunk=st.sampled_from([4096, 1 << 20])
)
def test_all_ranks_get_the_same_near_the_mean(codec, size, numel, chunk):
    def body(place):
        x = vector(place.rank, numel)
        average = CompressedAverage(
            codec, numel, place.comm, chunk_bytes=chunk, owner_feedback=False, device=torch.device("cpu")
        )
        average(x, 5)
        return x

    results = run_world(size, body, timeout_s=20)
    mean = sum(vector(r, numel) for r in range(size)) / size
    assert all(torch.equal(results[0], r) for r in results)
    if size == 1:
        assert torch.equal(results[0], mean)
    elif numel:
        assert (results[0] - mean).norm() <= 2.5 * mean.norm() + 3


@pytest.mark.parametrize("codec", [Sign(), MinMax8(), Sign(block=32)], ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_both_sides_feedback_loses_nothing(codec, size):
    numel = 3333

    def body(place):
        average = CompressedAverage(
            codec, numel, place.comm, chunk_bytes=4096, owner_feedback=True, device=torch.device("cpu")
        )
        residual, out, total = torch.zeros(numel), torch.zeros(numel), torch.zeros(numel)
        for step in range(6):
            x = vector(place.rank, numel, step)
            total += x
            average(x, step, residual)
            out += x
        place.comm.all_reduce(residual).wait()
        place.comm.all_reduce(total).wait()
        return out * size + residual, total

    for found, wanted in run_world(size, body, timeout_s=20):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", [0, 2500, 4999])
def test_poison_reaches_all_and_no_residual(where):
    def body(place):
        average = CompressedAverage(
            Sign(), 5000, place.comm, chunk_bytes=4096, owner_feedback=True, device=torch.device("cpu")
        )
        residual = vector(place.rank, 5000, 9)
        x = vector(place.rank, 5000)
        if place.rank == 1:
            x[:] = torch.nan  # what the engine makes of a bucket with one bad element
        average(x, 0, residual)
        return bool(x.isfinite().all()), bool(residual.isfinite().all())

    assert run_world(3, body, timeout_s=20) == [(False, True)] * 3


@pytest.mark.parametrize("owner_feedback", [True, False])
def test_a_mean_that_overflows_the_codec_leaves_what_is_owed_alone(owner_feedback):
    """What the others send of a part is in the range of 16 bits, and its mean is not."""

    def body(place):
        average = CompressedAverage(
            Fp16(), 200, place.comm, chunk_bytes=4096, owner_feedback=owner_feedback, device=torch.device("cpu")
        )
        residual, x = torch.full((200,), 1e-3), torch.zeros(200)
        own = slice(100 * place.rank, 100 * place.rank + 100)
        x[own] = 2e5
        average(x, 0, residual)
        return bool(x.isinf().all()), residual[own]

    for infinite, owed in run_world(2, body, timeout_s=20):
        assert infinite
        assert torch.equal(owed, torch.full((100,), 1e-3))


class Kept(WrappedComm):
    """Keeps what it has begun, and notes which of it was waited for."""

    def __init__(self, comm):
        super().__init__(comm)
        self.begun, self.waited = [], set()

    def exchange(self, *given, **named):
        return self._kept(super().exchange(*given, **named))

    def expect(self, *given, **named):
        return self._kept(super().expect(*given, **named))

    def _kept(self, work):
        self.begun.append(work)
        return SimpleNamespace(wait=lambda: (work.wait(), self.waited.add(id(work))))


@pytest.mark.parametrize("stage", [1, 2])
def test_an_average_that_is_broken_off_leaves_no_message_under_way(stage):
    """As where another part of a bucket raises: what nobody waits for would stand in the way of the next plan."""

    def body(place):
        comm = Kept(place.comm)
        average = CompressedAverage(
            MinMax8(block=32), 1000, comm, chunk_bytes=512, owner_feedback=False, device=torch.device("cpu")
        )
        stages = average.stages(vector(place.rank, 1000), 1)
        for _ in range(stage):
            next(stages)
        num = len(comm.begun)
        stages.close()
        x = vector(place.rank, 1000, 1)
        place.comm.all_reduce(x).wait()
        return num, len(comm.begun), {id(work) for work in comm.begun} == comm.waited, x

    results = run_world(2, body, timeout_s=20)
    for num, begun, all_waited, x in results:
        assert num == begun > 0
        assert all_waited
        assert torch.equal(x, results[0][-1])


def test_bytes_on_the_wire_are_the_codecs_own():
    numel, size, codec = 10 * 2048, 4, MinMax8()

    def body(place):
        comm = RecordedComm(place.comm)
        average = CompressedAverage(
            codec, numel, comm, chunk_bytes=1 << 20, owner_feedback=False, device=torch.device("cpu")
        )
        average(vector(place.rank, numel), 0)
        return comm.sent_bytes, comm.received_bytes

    units = [2, 3, 2, 3]  # 10 blocks over 4 owners
    for rank, (sent, received) in enumerate(run_world(size, body)):
        others = sum(codec.nbytes(2048 * u) for k, u in enumerate(units) if k != rank)
        own = codec.nbytes(2048 * units[rank])
        assert sent == received == others + 3 * own


@pytest.mark.parametrize("rank", [1, 2, 8])
def test_low_rank_equals_the_dense_product(rank):
    """M' = P P^T mean(M) with P from Q by one power step; exact for matrices of that rank."""
    shapes = {"w": (12, 20), "b": (7,), "conv": (6, 2, 3, 3)}
    numel = 12 * 20 + 7 + 6 * 18

    def body(place):
        average = LowRankAverage(shapes, rank, place.comm, torch.device("cpu"))
        residual = torch.zeros(numel)
        factors = {n: torch.zeros(f) for n, s in shapes.items() if (f := factor_shape(s, rank)) is not None}
        low = torch.outer(torch.arange(12.0) + 1, torch.arange(20.0) - place.rank)  # rank 1 on each rank, 2 in the mean
        x = torch.cat([low.flatten(), vector(place.rank, 7 + 6 * 18)])
        before = x.clone()
        average(x, residual, factors)
        return x, residual, before

    results = run_world(3, body)
    mean = sum(b for _, _, b in results) / 3
    for x, _, _ in results:
        assert torch.equal(x, results[0][0])
        torch.testing.assert_close(x[240:247], mean[240:247])
        if rank >= 2:
            torch.testing.assert_close(x[:240], mean[:240], rtol=1e-3, atol=1e-2)
    total = sum(r for _, r, _ in results)
    torch.testing.assert_close(3 * results[0][0] + total, 3 * mean, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("numel", [0, 1, 1000, 40_000, 70_001, 1_200_000])  # one hop, two, a ring
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_vectors_are_averaged_in_few_hops_alike_on_all_ranks(size, numel):
    def body(place):
        comm, x = RecordedComm(place.comm), vector(place.rank, numel)
        average = ShortVectorAverage(numel, comm, x.device)
        average(x)
        average(again := vector(place.rank, numel))
        assert torch.equal(x, again)
        return x, comm.calls["exchange"], comm.calls["all_reduce"], comm.sent_bytes

    results = run_world(size, body, timeout_s=20)
    hops = 0 if size == 1 or not numel else 1 if 4 * numel * (size - 1) <= 1 << 18 else 2 if 4 * numel <= 1 << 22 else 3
    for x, exchanges, all_reduces, sent_bytes in results:
        assert torch.equal(x, results[0][0])
        torch.testing.assert_close(x, sum(vector(r, numel) for r in range(size)) / size)
        assert (exchanges, all_reduces) == ((2 * hops, 0) if hops < 3 else (0, 2))
        if hops == 1:
            assert sent_bytes == 2 * (size - 1) * numel * 4
        if hops == 2:  # a rank's own part may be a little shorter than the others'
            assert abs(sent_bytes - 2 * 2 * (size - 1) / size * numel * 4) <= 2 * 4 * size * size


class Heard:
    """A codec, and what it has decoded from others before it is added up."""

    def __init__(self, codec):
        self._codec, self.decoded = codec, []

    def __getattr__(self, name):
        return getattr(self._codec, name)

    def decode_add(self, payload, acc):
        self.decoded.append(torch.zeros_like(acc))
        self._codec.decode_add(payload, self.decoded[-1])
        acc.add_(self.decoded[-1])


@pytest.mark.parametrize("codec", [c for c in DENSE if c.unbiased], ids=str)
def test_ranks_round_independently(codec):
    """All ranks hold the same vector: the error of the mean of n of them has an n-th of one's variance."""
    size, numel = 4, 4 * 4096

    def body(place):
        heard = Heard(codec)
        average = CompressedAverage(
            heard, numel, place.comm, chunk_bytes=1 << 20, owner_feedback=False, device=torch.device("cpu")
        )
        x = vector(0, numel)
        average(x, 5)
        own = vector(0, numel)[place.rank * 4096 : (place.rank + 1) * 4096]
        return torch.stack(heard.decoded) - own  # (size - 1, 4096)

    for errors in run_world(size, body, timeout_s=20):
        ratio = float(len(errors) * errors.mean(0).square().mean() / errors.square().mean())
        assert 0.85 < ratio < 1.15  # it would be 3 if all drew the same random numbers


def test_low_rank_pays_what_was_owed_once():
    """Residuals that are there at the start, as after a switch of plans, of matrices and of what stays whole."""
    shapes = {"b": (7,), "w": (12, 20), "c": (5,)}
    numel, size = 7 + 12 * 20 + 5, 3

    def body(place):
        average = LowRankAverage(shapes, 2, place.comm, torch.device("cpu"))
        factors = {"w": torch.zeros(factor_shape(shapes["w"], 2))}
        residual, out = vector(place.rank, numel, 9), torch.zeros(numel)
        owed = residual.clone()
        for step in range(3):
            x = vector(place.rank, numel, step)
            owed += x
            average(x, residual, factors)
            out += x
        return size * out, owed, residual

    results = run_world(size, body, timeout_s=20)
    found = results[0][0] + sum(residual for _, _, residual in results)
    torch.testing.assert_close(found, sum(owed for _, owed, _ in results), rtol=1e-4, atol=1e-4)


def test_a_factor_that_had_no_direction_gets_one_when_there_is():
    """After a matrix of rank 1, the second row of Q is zero; one of rank 2 is sent whole all the same."""
    rows, columns = torch.linalg.qr(vector(0, 24).view(12, 2))[0], torch.linalg.qr(vector(1, 40).view(20, 2))[0]

    def body(place):
        average = LowRankAverage({"w": (12, 20)}, 2, place.comm, torch.device("cpu"))
        residual, factors = torch.zeros(240), {"w": torch.zeros(2, 20)}
        found = []
        for rank in (1, 2, 2):
            x = (rows[:, :rank] @ columns[:, :rank].T).flatten()
            average(x, residual, factors)
            found.append(x)
        return found

    for first, *others in run_world(2, body, timeout_s=20):
        torch.testing.assert_close(first, torch.outer(rows[:, 0], columns[:, 0]).flatten(), rtol=0, atol=1e-5)
        for x in others:
            torch.testing.assert_close(x, (rows @ columns.T).flatten(), rtol=0, atol=1e-4)
