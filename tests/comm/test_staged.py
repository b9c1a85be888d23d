"""Tensors of a device go by way of host memory: the same results as on the CPU, and the host looks at none of them."""

from contextlib import nullcontext

import pytest
import torch

from comm.test_standing import Posts
from device import DEVICE, HostReadError, Stream, device_at_hand, to_device, to_host
from exchanges import COLLECTIVES, NUMEL
from pliant.codecs import Bf16, RandomK, Sign
from pliant.collectives import CompressedAverage, LowRankAverage, SharedSparseAverage, pieces
from pliant.comm import InOrderQueues, RecordedComm, StagedComm, broadcast_text, run_world, staged
from pliant.comm.agreement import require_same
from pliant.comm.transport import comm_alone


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    monkeypatch.setattr(staged, "current_stream", lambda device: Stream())
    monkeypatch.setattr(staged, "pinned", lambda shape, dtype, beside: torch.empty(shape, dtype=dtype))


@pytest.fixture(autouse=True)
def long_pieces(monkeypatch):
    """Let pieces be as long as on the CPU: random rounding and what a NaN spoils go by the piece."""
    monkeypatch.setattr(pieces, "_DEVICE_PIECE_BYTES", 0)


def start(rank):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank))


def on_host(place, make):
    call, x = make(place.comm, torch.device("cpu")), start(place.rank)
    for _ in range(3):
        call(x)
    return x


def on_device(place, make, wrap=lambda comm: comm):
    comm = StagedComm(wrap(place.comm))
    with device_at_hand():
        call, x = make(comm, DEVICE), to_device(start(place.rank))
        for _ in range(3):
            call(x)
    return to_host(x)


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if "schedule" not in name])  # compared when made
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.extended), 3])
def test_collectives_of_a_device_equal_those_of_the_host(name, size):
    make = COLLECTIVES[name]
    found = run_world(size, lambda place: on_device(place, make), timeout_s=20)
    wanted = run_world(size, lambda place: on_host(place, make), timeout_s=20)
    for x, y in zip(found, wanted, strict=True):
        if name == "low rank":  # products of matrices are not the C kernel's, to the bit
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(x, y)


def test_a_rank_that_is_alone_keeps_what_is_on_its_device():
    with device_at_hand():
        comm, x, out = comm_alone(DEVICE), to_device(start(0)), to_device(torch.zeros(NUMEL))
        comm.broadcast(x, 0).wait()
        comm.all_reduce(x).wait()
        comm.all_gather(out, x).wait()
    assert torch.equal(to_host(x), start(0))
    assert torch.equal(to_host(out), start(0))


@pytest.mark.parametrize(("asked", "most"), [(1 << 20, 16 << 20), (32 << 20, 32 << 20)])
def test_pieces_of_a_device_are_not_too_short_to_pay_their_launches(asked, most, monkeypatch):
    monkeypatch.undo()
    assert pieces.piece_bytes(asked, DEVICE) == most
    assert pieces.piece_bytes(asked, torch.device("cpu")) == asked


@pytest.mark.parametrize(("wraps", "per_piece"), [(lambda comm: comm, 2 + 1), (StagedComm, 1 + 1)])
def test_on_a_device_a_piece_goes_to_all_owners_at_once(wraps, per_piece):
    """Each exchange waits for a copy to the host; on the CPU a piece goes to an owner while the next one is coded."""

    def body(place):
        counted = RecordedComm(place.comm)
        on_host = wraps(counted) is counted
        device, move = (torch.device("cpu"), torch.clone) if on_host else (DEVICE, to_device)
        posted = []
        exchange = counted.exchange
        counted.exchange = lambda *given, **more: posted.append(1) or exchange(*given, **more)
        settings = {"chunk_bytes": 1 << 20, "owner_feedback": False, "device": device}
        with nullcontext() if on_host else device_at_hand():
            average = CompressedAverage(Sign(), 3 << 19, wraps(counted), **settings)
            average(move(torch.randn(3 << 19)), 0)
        return len(posted) / 2  # pieces

    assert run_world(3, body, timeout_s=20) == [per_piece] * 3


def test_a_piece_of_all_owners_is_one_copy_each_way():
    """Of either half: out and in. A message of each rank would be three times as many."""

    def body(place):
        comm, copied = StagedComm(place.comm), []
        take = comm.buffers.take
        comm.buffers.take = lambda like: copied.append(like) or take(like)
        with device_at_hand():
            average = CompressedAverage(Sign(), 4096, comm, chunk_bytes=1 << 20, owner_feedback=False, device=DEVICE)
            average(to_device(torch.randn(4096)), 0)
        return len(copied)

    assert run_world(4, body, timeout_s=20) == [4] * 4


@pytest.mark.parametrize("name", ["compressed, Sign(block=32)", "owners, coded", "between hosts"])
def test_staged_messages_keep_the_order_of_accelerators(name):
    """The transport changes no order: below it may be anything that carries tensors of the host."""
    make = COLLECTIVES[name]
    queues = InOrderQueues()
    found = run_world(3, lambda place: on_device(place, make, queues.wrap), timeout_s=20)
    wanted = run_world(3, lambda place: on_host(place, make), timeout_s=20)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.extended
def test_buffers_are_made_once():
    def body(place):
        comm = StagedComm(place.comm)
        with device_at_hand():
            call, x = COLLECTIVES["compressed, MinMax8(block=33)"](comm, DEVICE), to_device(start(place.rank))
            made = []
            for _ in range(4):
                call(x)
                made.append(comm.buffers.num_made)
        return made

    for made in run_world(3, body, timeout_s=20):
        assert made[0] > 0
        assert made[2] == made[3]  # more than in the first call, since receives stand from the second on


def test_receives_of_a_device_stand_in_host_memory():
    def body(place):
        posts, counts = Posts(place.comm), []
        with device_at_hand():
            call, x = COLLECTIVES["compressed, Sign(block=32)"](StagedComm(posts), DEVICE), to_device(start(place.rank))
            for _ in range(3):
                call(x)
                counts.append(posts.num_waiting)
        return counts

    for first, second, third in run_world(3, body, timeout_s=20):
        assert 0 == first < second == third


def test_every_verb_carries_tensors_of_both():
    """Tensors of the host, such as control messages, go straight through, and are counted below."""

    def verbs(comm, on):
        size, me = comm.size, comm.rank
        x = on(torch.arange(3.0) + me)
        gathered, scattered, turned = (on(torch.zeros(n)) for n in (3 * size, 3, 3 * size))
        comm.all_gather(gathered, x).wait()
        wide = on(torch.arange(3.0 * size) * (me + 1))
        comm.reduce_scatter(scattered, wide).wait()
        comm.all_to_all(turned, wide).wait()
        received, right, left = on(torch.zeros(3)), (me + 1) % size, (me - 1) % size
        comm.exchange([(right, x)], [(left, received)]).wait()
        total, most, first, at_root = (on(torch.arange(3.0) + me) for _ in range(4))
        comm.all_reduce(total).wait()
        comm.all_reduce(most, "max").wait()
        comm.broadcast(first, 1).wait()
        comm.reduce(at_root, 0).wait()
        pair = comm.split([[0, 1], [2]])
        halves = on(torch.ones(2) * me)
        pair.all_reduce(halves).wait()
        comm.barrier()
        return [gathered, scattered, turned, received, total, most, first, halves, *([at_root] if me == 0 else [])]

    def body(place):
        counted = RecordedComm(place.comm)
        comm = StagedComm(counted)
        assert broadcast_text("a plan" if place.rank == 0 else "", comm) == "a plan"
        require_same(comm, "the plan", 7)
        counted.reset()
        on_host, sent = verbs(comm, lambda x: x), counted.sent_bytes
        counted.reset()
        on_device = verbs(comm, to_device)
        assert counted.sent_bytes == sent > 0
        return on_host, [to_host(x) for x in on_device]

    for on_host, on_device in run_world(3, body, timeout_s=20):
        assert all(map(torch.equal, on_host, on_device))


def test_a_host_read_of_a_device_tensor_fails():
    def reads(place):
        x = to_device(torch.ones(3))
        StagedComm(place.comm).all_reduce(x).wait()
        for read in (lambda: x.sum().item(), lambda: bool(x.any()), x.tolist, x.cpu, x.numpy, x.data_ptr):
            with pytest.raises(HostReadError):
                read()
        with pytest.raises(HostReadError, match="copy blocks"):
            torch.zeros(3).copy_(x)

    run_world(1, reads)


def with_residual(kind):
    """Return what makes a collective that feeds errors back, and its residual."""

    def make(comm, device):
        residual = torch.linspace(-1, 1, NUMEL).to(device)
        if kind == "low rank":
            average = LowRankAverage({"w": (50, 100)}, 2, comm, device)
            factors = {"w": torch.zeros(2, 100, device=device)}
            return lambda x: average(x, residual, factors), residual
        if kind == "shared sparse":
            average = SharedSparseAverage(RandomK(ratio=0.1), NUMEL, comm, device)
            return lambda x: average(x, 3, residual), residual
        codec = Bf16() if kind == "not fused" else Sign(block=32)
        average = CompressedAverage(
            codec, NUMEL, comm, chunk_bytes=1 << 11, owner_feedback=kind != "worker", device=device
        )
        return lambda x: average(x, 1, residual), residual

    return make


@pytest.mark.parametrize("kind", ["both", "worker", "not fused", "low rank", "shared sparse"])
@pytest.mark.parametrize("bad", [0, 3000, NUMEL - 1])
def test_what_is_not_finite_leaves_the_same_residual_as_on_the_host(kind, bad):
    def body(place, comm, device, bring):
        call, residual = with_residual(kind)(comm, device)
        x = start(place.rank)
        x[bad] = torch.nan if place.rank == 1 else x[bad]
        call(x := bring(x))
        return x, residual

    def on_device(place):
        with device_at_hand():
            return tuple(map(to_host, body(place, StagedComm(place.comm), DEVICE, to_device)))

    found = run_world(3, on_device, timeout_s=20)
    wanted = run_world(3, lambda place: body(place, place.comm, torch.device("cpu"), lambda x: x), timeout_s=20)
    for (x, residual), (y, right) in zip(found, wanted, strict=True):
        assert torch.equal(x.isfinite(), y.isfinite())
        assert not x.isfinite().all()
        assert torch.equal(residual, right)
