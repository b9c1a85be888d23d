"""Every comm gives the same answers, counted or not, in one level or two."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from pliant.comm import CommError, FaultyComm, RecordedComm, hierarchical_comm, run_world, threads as thread_worlds
from pliant.comm.torch_private import ThreadWorld

COMMS = {
    "plain": lambda comm: comm,
    "recorded": RecordedComm,
    "faulty without faults": FaultyComm,
    "two equal hosts": lambda comm: hierarchical_comm(comm, [[0, 1], [2, 3]]),
    "unequal hosts": lambda comm: hierarchical_comm(comm, [[0], [1, 2, 3]]),
    "one host": lambda comm: hierarchical_comm(comm, [[0, 1, 2, 3]]),
}
rows = pytest.mark.parametrize("make", COMMS.values(), ids=COMMS)
SIZE = 4


def data(rank, numel, dtype=torch.float32):
    return (torch.arange(numel) % 7 + rank).to(dtype)


@rows
@settings(max_examples=4)
@given(
    numel=st.sampled_from([1, 3, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64]),
)
def test_collectives_equal_numpy(make, numel, dtype):
    def body(place):
        comm = make(place.comm)
        assert (comm.rank, comm.size) == (place.rank, SIZE)
        out = {}
        for op in ("sum", "min", "max"):
            out[op] = data(place.rank, numel, dtype)
            comm.all_reduce(out[op], op).wait()
        out["gather"] = torch.empty(SIZE * numel, dtype=dtype)
        comm.all_gather(out["gather"], data(place.rank, numel, dtype)).wait()
        out["scatter"] = torch.empty(numel, dtype=dtype)
        comm.reduce_scatter(out["scatter"], data(place.rank, SIZE * numel, dtype)).wait()
        out["all"] = torch.empty(SIZE * numel, dtype=dtype)
        comm.all_to_all(out["all"], data(place.rank, SIZE * numel, dtype)).wait()
        out["broadcast"] = data(place.rank, numel, dtype)
        comm.broadcast(out["broadcast"], 2).wait()
        out["reduce"] = data(place.rank, numel, dtype)
        comm.reduce(out["reduce"], 1).wait()
        right, left = (place.rank + 1) % SIZE, (place.rank - 1) % SIZE
        out["ring"] = torch.empty(numel, dtype=dtype)
        work = comm.exchange([(right, data(place.rank, numel, dtype))], [(left, out["ring"])])
        work.wait()
        work.wait()  # again: returns at once
        comm.barrier()
        comm.close()
        return {k: v.double().numpy() for k, v in out.items()}

    results = run_world(SIZE, body, timeout_s=20)
    each = np.stack([data(r, numel, torch.float64).numpy() for r in range(SIZE)])
    wide = np.stack([data(r, SIZE * numel, torch.float64).numpy() for r in range(SIZE)])
    for rank, out in enumerate(results):
        np.testing.assert_array_equal(out["sum"], each.sum(0))
        np.testing.assert_array_equal(out["min"], each.min(0))
        np.testing.assert_array_equal(out["max"], each.max(0))
        np.testing.assert_array_equal(out["gather"], each.reshape(-1))
        part = slice(rank * numel, (rank + 1) * numel)
        np.testing.assert_array_equal(out["scatter"], wide.sum(0)[part])
        np.testing.assert_array_equal(out["all"], wide[:, part].reshape(-1))
        np.testing.assert_array_equal(out["broadcast"], each[2])
        np.testing.assert_array_equal(out["ring"], each[(rank - 1) % SIZE])
    np.testing.assert_array_equal(results[1]["reduce"], each.sum(0))


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float16]
)
def test_bytes_of_any_dtype_can_move(dtype):
    def body(place):
        out = torch.empty(2 * 3, dtype=dtype)
        place.comm.all_gather(out, torch.full((3,), place.rank + 1).to(dtype)).wait()
        peer = 1 - place.rank
        got, one = torch.empty(3, dtype=dtype), torch.tensor(place.rank + 3).to(dtype)
        place.comm.exchange([(peer, out[:3])], [(peer, got)]).wait()
        place.comm.broadcast(one, 1).wait()
        return out.float().tolist(), got.float().tolist(), float(one)

    assert run_world(2, body) == [([1, 1, 1, 2, 2, 2], [1, 1, 1], 4)] * 2


def test_non_contiguous_tensors_and_wrong_sizes_are_refused():
    def body(place):
        crooked = torch.ones(4, 4).t()[:, ::2]
        with pytest.raises(ValueError, match="not contiguous"):
            place.comm.all_reduce(crooked)
        with pytest.raises(ValueError, match="not contiguous"):
            place.comm.exchange([(0, crooked)], [])
        with pytest.raises(ValueError, match="needs a tensor of 8 elements here, but got 5"):
            place.comm.all_gather(torch.empty(5), torch.empty(4))

    run_world(2, body)


def test_hosts_must_hold_every_rank_once():
    def body(place):
        hierarchical_comm(place.comm, [[0], [0, 1]])

    with pytest.raises(ValueError, match=r"hold ranks \[0, 0, 1\], but the group has ranks 0\.\.1;"):
        run_world(2, body)


class Heard:
    def __init__(self):
        self.messages = []

    def now(self):
        return time.perf_counter()

    def on_transfer(self, name, start, wait_from, sent_bytes, received_bytes):
        assert start <= wait_from <= self.now()
        self.messages.append((name, sent_bytes))


def test_recorded_counts_what_the_formulas_say():
    def body(place):
        heard = Heard()
        comm = RecordedComm(place.comm, heard)
        comm.all_reduce(torch.empty(1000)).wait()
        comm.all_gather(torch.empty(4000), torch.empty(1000)).wait()
        comm.exchange([((place.rank + 1) % 4, torch.empty(10))], [((place.rank - 1) % 4, torch.empty(10))]).wait()
        comm.broadcast(torch.empty(100), 0).wait()
        part = comm.split([[0, 1], [2, 3]])
        part.all_reduce(torch.empty(50)).wait()
        assert dict(comm.calls) == {"all_reduce": 2, "all_gather": 1, "exchange": 1, "broadcast": 1}
        assert [name for name, _ in heard.messages] == [
            "all_reduce",
            "all_gather",
            "exchange",
            "broadcast",
            "all_reduce",
        ]
        assert sum(sent for _, sent in heard.messages) == comm.sent_bytes
        counted = comm.sent_bytes, comm.received_bytes
        comm.reset()
        assert comm.sent_bytes == 0
        return counted

    ring, gathered, small = 2 * 3 * 4000 // 4, 3 * 4000, 40
    rest = [ring + gathered + small + 200] * 2
    first = [ring + gathered + small + 200 + 3 * 400, ring + gathered + small + 200]
    results = run_world(4, body)
    assert list(results[0]) == first
    assert list(results[1]) == [rest[0], rest[1] + 400]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize(
    "op",
    [
        lambda comm, n, root: comm.all_reduce(torch.ones(6 * n)),
        lambda comm, n, root: comm.all_gather(torch.empty(comm.size * n), torch.ones(n)),
        lambda comm, n, root: comm.reduce_scatter(torch.empty(n), torch.ones(comm.size * n)),
        lambda comm, n, root: comm.all_to_all(torch.empty(6 * n), torch.ones(6 * n)),
        lambda comm, n, root: comm.broadcast(torch.ones(n), root % comm.size),
        lambda comm, n, root: comm.reduce(torch.ones(n), root % comm.size),
    ],
    ids=["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"],
)
def test_what_leaves_some_ranks_comes_to_others(op, root, size):
    def body(place):
        comm = RecordedComm(place.comm)
        op(comm, 100, root).wait()
        return comm.sent_bytes, comm.received_bytes

    sent, received = zip(*run_world(size, body), strict=True)
    assert sum(sent) == sum(received)
    assert (sum(sent) > 0) == (size > 1)


def test_faults_strike_where_they_are_told_to():
    def fails(place):
        comm = FaultyComm(place.comm)
        if place.rank == 1:
            comm.delay("all_reduce", 1, delay_s=0.05).fail("all_reduce", 2)
        x = torch.ones(2)
        comm.all_reduce(x).wait()
        assert x.tolist() == [2, 2]
        comm.all_reduce(x).wait()

    with pytest.raises(CommError, match="made to fail at call 2"):
        run_world(2, fails, timeout_s=3)


def test_a_dropped_call_times_out_elsewhere_and_says_so():
    noticed = threading.Event()

    def drops(place):
        comm = FaultyComm(place.comm)
        if place.rank == 1:
            comm.drop("all_reduce", 1)
            comm.all_reduce(torch.ones(2)).wait()
            assert noticed.wait(timeout=250)
            return "dropped"
        with pytest.raises(CommError, match=r"rank 0 of 2: all_reduce of 8 bytes failed after 1\.\ds") as caught:
            comm.all_reduce(torch.ones(2)).wait()
        noticed.set()
        assert (caught.value.rank, caught.value.op) == (0, "all_reduce")
        return "timed out"

    assert run_world(2, drops, timeout_s=1.0) == ["timed out", "dropped"]


def test_no_rank_of_a_world_begins_before_all_are_connected(monkeypatch):
    """One that communicates nothing would end, and hang up on those that still connect."""
    made, make, begun = [], ThreadWorld.new_group, threading.Event()

    def new_group(world, rank, ranks=None):
        group = make(world, rank, ranks)
        if rank == 0 and made.count(0):
            begun.wait(0.2)  # the others may begin, if they would
        made.append(rank)
        return group

    def body(place):
        begun.set()
        return len(made)

    monkeypatch.setattr(ThreadWorld, "new_group", new_group)
    assert run_world(3, body) == [6, 6, 6]


def test_a_rank_that_cannot_connect_does_not_hold_up_the_others(monkeypatch):
    def new_group(world, rank, ranks=None):
        if rank == 1:
            raise KeyError("no port")
        return object()

    monkeypatch.setattr(ThreadWorld, "new_group", new_group)
    monkeypatch.setattr(thread_worlds, "group_factory", lambda group, limit: lambda ranks: group)
    monkeypatch.setattr(thread_worlds, "ProcessGroupComm", lambda group, **settings: group)
    with pytest.raises(KeyError, match="no port"):
        run_world(3, lambda place: None)


def test_a_world_raises_the_first_error_and_frees_the_others():
    def body(place):
        if place.rank == 2:
            raise KeyError("boom")
        place.comm.all_reduce(torch.ones(2)).wait()

    with pytest.raises(KeyError, match="boom") as caught:
        run_world(4, body, timeout_s=60)
    assert "rank 2" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="0 ranks"):
        run_world(0, body)


def test_what_is_sent_is_counted_before_a_peer_can_have_it():
    """Else a peer goes on, and another thread here reads a count without what the peer has."""
    counted, marks = [], []

    class Peeking:
        rank, size, timeout_s = 0, 2, 20.0

        def __getattr__(self, op):
            def start(*_arguments, **_settings):
                counted.append((op, recorder.calls[op], recorder.sent_bytes))
                return self

            return start

        def wait(self):
            pass

        def now(self):
            marks.append(recorder.sent_bytes)
            return len(marks)

    recorder, x = RecordedComm(Peeking(), Peeking()), torch.zeros(4)
    recorder.all_reduce(x)
    recorder.exchange([(1, x)], [])
    recorder.broadcast(x, 0)
    recorder.reduce(x, 1)
    assert counted == [("all_reduce", 1, 16), ("exchange", 1, 32), ("broadcast", 1, 48), ("reduce", 1, 64)]
    assert marks == [0, 16, 32, 48], "a listener that begins between hears more than is counted from then on"
