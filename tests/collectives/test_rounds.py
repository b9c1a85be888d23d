"""Collectives in few rounds: what they move, for any number of ranks, and that their results are everybody's."""

import pytest
import torch

from pliant.codecs import Int4
from pliant.collectives import CompressedAverage, ShortVectorAverage
from pliant.collectives.rounds import RoundsComm
from pliant.comm import InOrderQueues, RecordedComm, run_world
from pliant.comm.wrapped import WrappedComm
from pliant.layouts.rounds import average_form, codes_in_rounds, forwards, rounds_among

CPU = torch.device("cpu")
SIZES = [*range(1, 10), 16]


def vector(rank, numel):
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("size", [*range(1, 75), 128, 513])
def test_rounds_bring_every_row_where_it_belongs(size):
    """Seen from one rank, as all do the same: `held` has the distances to the ranks whose rows are there."""
    rounds = rounds_among(size)
    assert len(rounds) == next(k for k in range(9) if 8**k >= size)
    held = [0]
    for hops in rounds:
        assert len(hops) <= 7
        for at, count, _ in hops:
            assert len(held) == at  # what comes lies behind what is there, or behind the hop before
            held += [at + row for row in held[:count]]
    assert held == list(range(size))
    summands = [{0} for _ in range(size)]  # of each row, how far back the ranks are that have added to it
    for hops in reversed(rounds):
        stay = hops[0].distance
        for at, count, _ in hops:
            for j in range(count):
                moved = {at + back for back in summands[at + j]}
                assert not moved & summands[j]
                summands[j] |= moved
        del summands[stay:]
    assert summands == [set(range(size))] or size == 1
    gone = [0] * size
    for hops in rounds:
        for hop in hops:
            for row in hop.rows:
                gone[row] += hop.distance
    assert gone == list(range(size))


@pytest.mark.parametrize("size", SIZES)
def test_gathers_sums_and_all_to_alls_are_those_of_any_comm(size):
    """On queues in order, as NCCL's are; numbers are whole, so that sums are exact in any order."""
    queues = InOrderQueues()
    data = [torch.arange(5.0 * size) * (rank + 1) for rank in range(size)]

    def body(place):
        counted = RecordedComm(queues.wrap(place.comm))
        comm, x = RoundsComm(counted, CPU), data[place.rank]
        gathered, total, swapped = torch.empty(5 * size), torch.empty(5), torch.empty(5 * size)
        sent = []
        for call in (
            lambda: comm.all_gather(gathered, x[:5]),
            lambda: comm.reduce_scatter(total, x),
            lambda: comm.all_to_all(swapped, x),
        ):
            counted.reset()
            call().wait()
            sent.append((counted.sent_messages, counted.sent_bytes // 20))
        mine = slice(5 * place.rank, 5 * place.rank + 5)
        assert torch.equal(gathered, torch.cat([each[:5] for each in data]))
        assert torch.equal(total, torch.stack(data).sum(0)[mine])
        assert torch.equal(swapped, torch.cat([each[mine] for each in data]))
        return sent

    hops = [hop for hops in rounds_among(size) for hop in hops]
    rows = sum(len(hop.rows) for hop in hops)
    for sent in run_world(size, body, timeout_s=20):
        assert sent == [(len(hops), size - 1), (len(hops), size - 1), (len(hops), rows)]


@pytest.mark.parametrize("size", SIZES[1:])
def test_averages_are_equal_to_the_bit_and_right(size):
    """Vectors that are gathered, and vectors in halves whose parts are equal or not."""
    queues, numels = InOrderQueues(), (7, 1000, 8192 * size, 8192 * size + 3)
    forms = [average_form(numel, size) for numel in numels]
    assert forms[:2] == ["gather"] * 2 and (size < 4 or forms[2:] == ["halves"] * 2)

    def body(place):
        comm, found = queues.wrap(place.comm), []
        for numel in numels:
            average = ShortVectorAverage(numel, comm, CPU)
            for _ in range(2):
                average(x := vector(place.rank, numel))
            found.append(x)
        return found

    results = run_world(size, body, timeout_s=20)
    for k, numel in enumerate(numels):
        mean = torch.stack([vector(rank, numel).double() for rank in range(size)]).mean(0)
        assert all(torch.equal(found[k], results[0][k]) for found in results)
        torch.testing.assert_close(results[0][k].double(), mean, rtol=0, atol=1e-6)


class _Collectives(WrappedComm):
    prefers_collectives = True


@pytest.mark.parametrize("size", [9, 16])
def test_codes_in_rounds_give_what_any_comm_gives(size):
    """One that prefers its own collectives gives the same to the bit; payloads are forwarded, or sent in pairs."""
    numel = 3001

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
    assert codes_in_rounds(Int4().nbytes(384), 384, 1 << 20, size) and forwards(Int4().nbytes(384), size)
    for (x, residual, _), (in_pairs, owed, half), (forwarded, owed_too, both) in run_world(size, body, timeout_s=20):
        assert torch.equal(x, in_pairs) and torch.equal(residual, owed)
        assert torch.equal(x, forwarded) and torch.equal(residual, owed_too)
        assert half <= size - 1 + few and both == 2 * few
