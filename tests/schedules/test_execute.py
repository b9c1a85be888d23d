"""Schedules carried out by real ranks: exact sums, the same bits, and not one byte more than the moves."""

import random

import pytest
import torch

from pliant.collectives.rounds import RoundsComm
from pliant.comm import RecordedComm, run_world
from pliant.schedules import (
    Collective,
    ScheduledAllReduce,
    ScheduleError,
    SparseAllReduce,
    build_schedule,
    candidates,
    merge_blocks,
    mixed_radix,
    shapes,
    verify,
)
from schedules.cases import hosts, random_collective, topologies_of

NUMELS = [3, 3, 6, 0, 9, 3, 12, 3, 3, 3, 6]


def bitmap(num_ranks, density, seed, num_blocks=11):
    rng = random.Random(seed)
    rows = [[rng.random() < density for _ in range(num_blocks)] for _ in range(num_ranks)]
    rows[0][0] = True
    for row in rows:
        row[1], row[2] = False, True
    return rows


def inputs(rank, held, numels, dtype, *, whole):
    """What this rank has; where it holds nothing, lies what nobody may look at."""
    generator = torch.Generator().manual_seed(rank)
    parts = []
    for mine, numel in zip(held[rank], numels, strict=True):
        values = torch.randn(numel, generator=generator)
        values = (values * 50).round() if whole else values
        parts.append(values.to(dtype) if mine else torch.full((numel,), float("nan"), dtype=dtype))
    return torch.cat(parts)


def true_sum(held, numels, dtype):
    """Of whole numbers, which no order of summation rounds."""
    num_ranks = len(held)
    each = torch.stack([inputs(r, held, numels, dtype, whole=True).double() for r in range(num_ranks)])
    return torch.nan_to_num(each, nan=0.0).sum(0).to(dtype)


def collective_of(held, numels, element_size=4, needers=None):
    return Collective.of(held, [numel * element_size for numel in numels], needers)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_every_shape_gives_exact_sums_and_counted_bytes(num_ranks):
    held = bitmap(num_ranks, 0.4, num_ranks)
    collective = collective_of(held, NUMELS)
    merged = merge_blocks(collective)
    topology = topologies_of(num_ranks)["uneven" if num_ranks > 2 else "full"]
    schedules = [
        build_schedule(
            merged.collective, random.Random(k).choices(range(num_ranks), k=merged.collective.num_blocks), shape
        )
        for k, shape in enumerate([*shapes(hosts([1] * num_ranks)), *shapes(topology)])
    ][: 20 if num_ranks < 8 else 8]

    def body(place):
        comm = RecordedComm(place.comm)
        like = torch.empty(sum(NUMELS))
        results = []
        for schedule in schedules:
            carry_out = ScheduledAllReduce(schedule, merged, collective, NUMELS, comm, like=like)
            comm.reset()
            for _ in range(2):  # buffers are used again
                x = inputs(place.rank, held, NUMELS, torch.float32, whole=True)
                carry_out(x)
                results.append(x)
            counted = verify(schedule, merged.collective)
            assert comm.sent_bytes == 2 * counted.sent_bytes[place.rank]
            assert comm.received_bytes == 2 * counted.received_bytes[place.rank]
            assert comm.calls["exchange"] <= 2 * (counted.num_rounds + 1)  # receives of the first go ahead
        return results

    wanted = true_sum(held, NUMELS, torch.float32)
    for results in run_world(num_ranks, body):
        for x in results:
            assert torch.equal(x, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_the_same_bits_on_every_rank(dtype):
    held = [[True] * len(NUMELS)] * 4
    collective = collective_of(held, NUMELS, dtype.itemsize)
    found = candidates(merge_blocks(collective), hosts([1] * 4))

    def body(place):
        results = []
        for each in found:
            x = inputs(place.rank, held, NUMELS, dtype, whole=dtype == torch.int64)
            ScheduledAllReduce(each.schedule, each.merged, collective, NUMELS, place.comm, like=x)(x)
            results.append(x)
        return results

    all_ranks = run_world(4, body)
    for results in zip(*all_ranks, strict=True):
        assert all(torch.equal(x, results[0]) for x in results)
    if dtype == torch.int64:
        assert torch.equal(all_ranks[0][0], true_sum(held, NUMELS, dtype))


def test_only_who_needs_a_block_is_sent_it():
    held = bitmap(3, 0.7, 3)
    needers = [[b % 3] for b in range(len(NUMELS))]
    collective = collective_of(held, NUMELS, needers=needers)
    merged = merge_blocks(collective)
    schedule = build_schedule(merged.collective, [n[0] for n in merged.collective.needers], mixed_radix((3,), (True,)))

    def body(place):
        x = inputs(place.rank, held, NUMELS, torch.float32, whole=True)
        ScheduledAllReduce(schedule, merged, collective, NUMELS, place.comm, like=x)(x)
        return x.split(NUMELS)

    wanted = true_sum(held, NUMELS, torch.float32).split(NUMELS)
    results = run_world(3, body)
    assert all(torch.equal(results[b % 3][b], wanted[b]) for b in range(len(NUMELS)))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_sparse_sums_follow_what_ranks_hold(num_ranks):
    numels = [5] * 40
    steps = [bitmap(num_ranks, density, seed, 40) for seed, density in enumerate((0.1, 0.5, 0.1, 1.0))]
    steps.append(steps[0])

    def body(place):
        x = torch.empty(200)
        summed = SparseAllReduce(numels, hosts([1] * num_ranks), place.comm, like=x)
        results = []
        for held in steps:
            x = inputs(place.rank, held, numels, torch.float32, whole=True)
            planned = summed(x, held[place.rank])
            results.append((x, planned.best.schedule))
        assert results[0][1] is results[-1][1]
        with pytest.raises(ValueError, match="40 blocks, but it is said of"):
            summed(x, [True])
        return results

    all_ranks = run_world(num_ranks, body)
    for results in all_ranks:
        for held, (x, schedule), (_, first) in zip(steps, results, all_ranks[0], strict=True):
            assert torch.equal(x, true_sum(held, numels, torch.float32))
            assert schedule == first


def test_bitmaps_go_by_the_comm_that_is_given_for_them():
    """As one that gathers short rows in few rounds, whose receives stand."""
    numels, held = [5] * 40, bitmap(3, 0.3, 1, 40)

    def body(place):
        gather = RecordedComm(RoundsComm(place.comm, torch.device("cpu")))
        summed = SparseAllReduce(numels, hosts([1] * 3), place.comm, like=torch.empty(200), gather=gather)
        for _ in range(3):
            x = inputs(place.rank, held, numels, torch.float32, whole=True)
            summed(x, held[place.rank])
            assert torch.equal(x, true_sum(held, numels, torch.float32))
        return gather.calls["all_gather"], gather.sent_bytes

    assert run_world(3, body) == [(3, 3 * 2 * 40 // 8)] * 3


def test_what_is_wrong_is_found_before_anything_moves():
    collective = random_collective(2, 4, 0.5, 1)
    merged = merge_blocks(collective)
    numels = [n // 4 for n in collective.block_bytes]
    good = build_schedule(merged.collective, [0] * merged.collective.num_blocks, mixed_radix((2,)))
    other = build_schedule(merged.collective, [1] * merged.collective.num_blocks, mixed_radix((2,)))
    short = type(good)(name="short", num_ranks=2, num_blocks=good.num_blocks, rounds=good.rounds[:1])
    like = torch.empty(sum(numels))

    def body(place):
        def make(schedule, *, blocks=numels, of=collective):
            return ScheduledAllReduce(schedule, merged, of, blocks, place.comm, like=like)

        with pytest.raises(ScheduleError, match="at the end rank"):
            make(short)
        with pytest.raises(ScheduleError, match="the schedule, or its blocks, of ranks"):
            make(good if place.rank == 0 else other)
        with pytest.raises(ScheduleError, match="the comm has 2 ranks, and there are 1 blocks of 4 elements"):
            make(good, blocks=[4])
        with pytest.raises(ScheduleError, match=r"leave out a block|is held by the ranks"):
            make(good, of=random_collective(2, 4, 0.5, 2))
        with pytest.raises(ValueError, match=r"vectors of \d+ elements of torch.float32, but got 3"):
            make(good)(torch.empty(3))
        with pytest.raises(ScheduleError, match="the topology, the blocks or the settings of a sparse sum of ranks"):
            SparseAllReduce(numels, hosts([1, 1], rate=1e6 * (1 + place.rank)), place.comm, like=like)

    run_world(2, body)
