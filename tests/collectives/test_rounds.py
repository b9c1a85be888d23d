"""Collectives in few rounds: what they move, for any number of ranks, and that their results are everybody's."""

import itertools
import threading

import pytest
import torch

from pliant.codecs import Int4, TopK
from pliant.collectives import CompressedAverage, ShortVectorAverage, SparseAverage
from pliant.collectives.rounds import RoundsComm
from pliant.comm import InOrderQueues, RecordedComm, run_world
from pliant.comm.wrapped import WrappedComm
from pliant.layouts.rounds import average_form, codes_in_rounds, forwards, gathers_in_rounds, is_short, rounds_among

CPU = torch.device("cpu")
SIZES = [*range(1, 10), 16, 29]


def vector(rank, numel):
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


def test_rounds_bring_every_row_where_it_belongs():
    for size, num_rounds in itertools.product([*range(1, 66), 128, 513], (0, 1, 2, 3)):
        rounds = rounds_among(size, num_rounds)
        assert len(rounds) <= (num_rounds or 3)
        check_gather(rounds, size)
        check_sum(rounds, size)
        gone = [0] * size
        for hop in itertools.chain(*rounds):
            for row in hop.rows:
                gone[row] += hop.distance
        assert gone == list(range(size))


def check_gather(rounds, size):
    """Seen from one rank, as all do the same: held are the distances to the ranks whose rows are there."""
    held = [0]
    for hops in rounds:
        came = [(at, [at + distance for distance in held[:count]]) for at, count, _ in hops]
        for at, distances in came:
            assert len(held) == at  # what comes lies behind what is there
            held += distances
    assert held == list(range(size))


def check_sum(rounds, size):
    """Summands of a row are known by the distance back to their ranks; none is added twice."""
    summands = [{0} for _ in range(size)]
    for hops in reversed(rounds):
        before = [set(each) for each in summands]
        for at, count, _ in hops:
            for j in range(count):
                moved = {at + back for back in before[at + j]}
                assert not moved & summands[j]
                summands[j] |= moved
        del summands[hops[0].distance :]
    assert summands == [set(range(size))]


@pytest.mark.parametrize("size", SIZES)
def test_gathers_sums_and_averages_are_those_of_any_comm(size):
    """On queues in order, as NCCL's are, and where receives stand; gathers and sums in one, two and three rounds."""
    queues, numels = InOrderQueues(), (7, 8192 * size, 8192 * size + 3)
    forms = [average_form(numel, size) for numel in numels]
    assert forms[0] == "gather"
    assert forms[1:] == ["halves" if size > 3 else "gather"] * 2

    def body(place):
        comm, means = queues.wrap(place.comm), list[torch.Tensor]()
        sent = [moved(over, size, num_rounds) for over in (comm, place.comm) for num_rounds in (1, 2, 3)]
        for numel in numels:
            average = ShortVectorAverage(numel, comm, CPU)
            for _ in range(2):
                average(x := vector(place.rank, numel))
            means.append(x)
        return sent, means

    results = run_world(size, body, timeout_s=20)
    for sent, _ in results:
        for num_rounds, counted in zip((1, 2, 3) * 2, sent, strict=True):
            hops = list(itertools.chain(*rounds_among(size, num_rounds)))
            rows = sum(len(hop.rows) for hop in hops)
            assert counted == 3 * [(len(hops), size - 1), (len(hops), size - 1), (len(hops), rows)]
    for k, numel in enumerate(numels):
        mean = sum(vector(rank, numel).double() for rank in range(size)) / size
        assert all(torch.equal(means[k], results[0][1][k]) for _, means in results)
        torch.testing.assert_close(results[0][1][k].double(), mean, rtol=0, atol=1e-6)


def moved(comm, size, num_rounds):
    """Check gathers, sums and all-to-alls of whole numbers, whose sums are exact; return messages and rows of each."""
    counted, mine = RecordedComm(comm), slice(5 * comm.rank, 5 * comm.rank + 5)
    rounds, sent = RoundsComm(counted, CPU, num_rounds=num_rounds), []
    gathered, total, swapped = torch.empty(5 * size), torch.empty(5), torch.empty(5 * size)
    for turn in range(3):  # before the third their receives stand
        data = [torch.arange(5.0 * size) * (rank + 1) + turn for rank in range(size)]
        x = data[comm.rank]
        for call in (
            lambda x: rounds.all_gather(gathered, x[:5]),
            lambda x: rounds.reduce_scatter(total, x),
            lambda x: rounds.all_to_all(swapped, x),
        ):
            counted.reset()
            call(x).wait()
            sent.append((counted.sent_messages, counted.sent_bytes // 20))
        assert torch.equal(gathered, torch.cat([each[:5] for each in data]))
        assert torch.equal(total, torch.stack(data).sum(0)[mine])
        assert torch.equal(swapped, torch.cat([each[mine] for each in data]))
    for root in {0, size // 2, size - 1}:
        told = data[root].clone() if root == comm.rank else torch.zeros(5 * size)
        rounds.broadcast(told, root).wait()
        assert torch.equal(told, data[root])
    return sent


class _Collectives(WrappedComm):
    prefers_collectives = True


def test_rows_are_gathered_in_rounds_up_to_half_a_megabyte_into_a_rank():
    assert [gathers_in_rounds(1 << 17, size) for size in (2, 5, 6)] == [True, True, False]
    assert [gathers_in_rounds((1 << 19) / 9 + more, 10) for more in (0, 1)] == [True, False]
    assert gathers_in_rounds(1 << 30, 2)  # one message each way, in any case
    assert all(gathers_in_rounds(1 << 14, size) for size in (2, 64, 1000))


@pytest.mark.parametrize("ratio", [0.1, 0.9])
def test_payloads_are_gathered_straight_where_few_bytes_meet(ratio):
    """They give what a ring gives, to the bit and in the bytes; with more of them the ring remains."""
    codec, numel = TopK(ratio=ratio), 40_000

    def body(place):
        found = []
        for comm in (_Collectives(place.comm), place.comm):
            counted, out = RecordedComm(comm), torch.empty(numel)
            average = SparseAverage(codec, numel, counted, CPU)
            for seed in range(3):
                average(out, vector(place.rank, numel) + seed, seed)
            found.append((out, counted.sent_bytes, counted.sent_messages, counted.calls["all_gather"]))
        return found

    in_rounds = gathers_in_rounds(codec.nbytes(numel), 4)
    assert not is_short(codec.nbytes(numel))
    assert in_rounds == (ratio < 0.5)
    for (ring, *of_ring, _), (straight, *counted, gathers) in run_world(4, body, timeout_s=20):
        assert torch.equal(ring, straight)
        assert counted == of_ring == [9 * codec.nbytes(numel), 9]
        assert gathers == (0 if in_rounds else 3)


def test_the_last_round_of_a_gather_is_under_way_when_the_call_returns():
    """So that other messages of a bucket travel beside it; else the first rank would wait for the second for ever."""
    has_begun = threading.Event()

    def body(place):
        rounds, out = RoundsComm(place.comm, CPU), torch.empty(4)
        if place.rank == 1:
            assert has_begun.wait(30)
        work = rounds.all_gather(out, torch.full((2,), float(place.rank)))
        has_begun.set()
        work.wait()
        out.add_(1)
        work.wait()  # again, which does nothing
        return out.tolist()

    assert run_world(2, body, timeout_s=30) == [[1.0, 1.0, 2.0, 2.0]] * 2


@pytest.mark.parametrize(("size", "num_rounds"), [(2, 1), (5, 2)])
def test_a_gather_that_nobody_has_waited_for_ends_before_the_next_of_its_size(size, num_rounds):
    """Rows of both lie in the same memory."""

    def body(place):
        rounds, outs = RoundsComm(place.comm, CPU, num_rounds=num_rounds), torch.empty(4, 2 * size)
        rows = [torch.full((2,), 10.0 * k + place.rank) for k in range(4)]
        works = [rounds.all_gather(out, row) for out, row in zip(outs, rows, strict=True)]
        for work in works:
            work.wait()
        return outs.tolist()

    wanted = [[10.0 * k + rank for rank in range(size) for _ in range(2)] for k in range(4)]
    assert run_world(size, body, timeout_s=20) == [wanted] * size


@pytest.mark.parametrize("size", [28, pytest.param(33, marks=pytest.mark.extended)])
def test_codes_in_rounds_give_what_any_comm_gives(size):
    """One that prefers its own collectives gives the same to the bit; payloads are forwarded, or sent in pairs."""
    numel = 64 * size - 1

    def body(place):
        found = []
        for comm, may_forward in ((_Collectives(place.comm), False), (place.comm, False), (place.comm, True)):
            comm = RecordedComm(comm)
            average = CompressedAverage(
                Int4(), numel, comm, chunk_bytes=1 << 20, owner_feedback=True, device=CPU, may_forward=may_forward
            )
            x, residual = vector(place.rank, numel), torch.zeros(numel)
            for seed in range(2):
                average(x, seed, residual)
            found.append((x, residual, comm.sent_messages / 2))
        return found

    few = sum(map(len, rounds_among(size)))
    assert codes_in_rounds(Int4().nbytes(64), 64, 1 << 20, size)
    assert forwards(Int4().nbytes(64), size)
    for found in run_world(size, body, timeout_s=20):
        x, residual, _ = found[0]
        for same, owed, _ in found[1:]:
            assert torch.equal(x, same)
            assert torch.equal(residual, owed)
        assert [messages for _, _, messages in found] == [2 * (size - 1), size - 1 + few, 2 * few]
