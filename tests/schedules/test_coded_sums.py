"""Means in codes along schedules: by an oracle that walks the moves, conservation, equal bits, and the bytes."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import nn

import pliant
from pliant.algorithms.executors.coded_average import coded_average
from pliant.algorithms.plans import plan_of
from pliant.codecs import codec_from, encode_feedback
from pliant.comm import run_world
from pliant.planner.schedules import with_schedules
from pliant.schedules import SolverOptions, background, candidates
from pliant.schedules.coded import ScheduledCodedAverage
from pliant.schedules.coded_rounds import coded_rounds
from pliant.schedules.dense import dense_merged
from pliant.schedules.scheduled_comm import ScheduledComm
from pliant.schedules.trees import pack_trees
from pliant.simulator import simulate
from pliant.spec import CodecSpec, Move, Schedule, Topology, from_json, to_json
from schedules.cases import SolvedAtOnce, hosts, trained
from schedules.test_dense import mesh
from simulator.test_bytes import model, sent_by_engine, workload_of

CPU = torch.device("cpu")
INT4, SIGN, QSGD = CodecSpec(name="int4"), CodecSpec(name="sign"), CodecSpec(name="qsgd", settings={"bits": 4})


@lru_cache
def schedules(size, seed=1):
    """Trees with relays, and two of the family, whose blocks have other owners and more rounds."""
    even = Schedule(name="even", num_ranks=size, num_blocks=2 * size, rounds=())
    family = {each.name: each.schedule for each in candidates(dense_merged(even, 1 << 20), hosts([1] * size))}
    some = {name: family[name] for name in ("direct", "halving") if name in family and size < 6}
    return {"relays": pack_trees(mesh(size, seed), hops=(2, 2)), **some}


def noise(rank, numel, step=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(100 * step + rank))


def in_world(schedule, codec, numel, *, feedback=True, steps=1, draw=noise):
    """Return results and residuals of each rank after some steps."""

    def average(context):
        by_trees = ScheduledCodedAverage(
            schedule, codec_from(codec), numel, context.comm, owner_feedback=feedback, device=CPU
        )
        residual, results = torch.zeros(numel), []
        for step in range(steps):
            x = draw(context.rank, numel, step)
            by_trees(x, 1000 * step, residual if feedback else None)
            results.append(x)
        return results, residual

    return run_world(schedule.num_ranks, average)


def by_moves(schedule, codec, numel, *, feedback, steps):
    """Return the same, from one process that walks the moves of each block."""
    codec, size = codec_from(codec), schedule.num_ranks
    cuts, owed = schedule.cuts(numel, codec.granularity), torch.zeros(size, numel)

    def coded(x, residual, seed):
        payload = torch.empty(codec.nbytes(len(x)), dtype=torch.uint8)
        if feedback:
            encode_feedback(codec, x, residual, payload, seed)
        else:
            codec.encode(x, payload, seed)
        out = torch.empty_like(x)
        codec.decode(payload, out)
        return out

    every = []
    for step in range(steps):
        seed, xs = 1000 * step, [noise(rank, numel, step) for rank in range(size)]
        for block in range(schedule.num_blocks):
            span = slice(cuts[block], cuts[block + 1])
            if not len(xs[0][span]):
                continue
            held, mean = {rank: x[span].clone() for rank, x in enumerate(xs)}, None
            for moves in schedule.rounds:
                mine = sorted(move for move in moves if move.block == block)
                up = [m for m in mine if m.kind == "reduce"]
                sent = [coded(held.pop(m.source), owed[m.source][span], seed + m.source + 1) for m in up]
                for m, partial in zip(up, sent, strict=True):
                    held[m.target] = held[m.target] + partial if m.target in held else partial
                if mean is None and len(mine) > len(up):
                    ((root, total),) = held.items()
                    error = owed[root][span] / size
                    mean = coded(total / size, error, seed)
                    owed[root][span] = error * size
            for x in xs:
                x[span] = mean
        every.append(xs[0])
    return every, owed


@pytest.mark.parametrize(("size", "numel"), [(3, 1001), (4, 4099), (5, 777), (7, 2053)])
@pytest.mark.parametrize("codec", [INT4, SIGN], ids=str)
def test_results_and_residuals_are_those_of_the_moves(size, numel, codec):
    for schedule in schedules(size).values():
        wanted, owed = by_moves(schedule, codec, numel, feedback=True, steps=2)
        for rank, (results, residual) in enumerate(in_world(schedule, codec, numel, steps=2)):
            assert all(torch.equal(x, y) for x, y in zip(results, wanted, strict=True))
            assert torch.equal(residual, owed[rank])


def test_an_unbiased_codec_without_feedback_draws_alike():
    schedule = schedules(4)["relays"]
    wanted, _ = by_moves(schedule, QSGD, 3000, feedback=False, steps=1)
    for results, residual in in_world(schedule, QSGD, 3000, feedback=False):
        assert torch.equal(results[0], wanted[0])
        assert not residual.any()


@pytest.mark.parametrize(("size", "numel"), [(3, 5000), (6, 3001)])
def test_what_is_owed_is_conserved(size, numel):
    """n (sum of results) + (sum of residuals) = sum of all inputs, after some steps."""
    steps = 4
    told = in_world(schedules(size)["relays"], SIGN, numel, steps=steps)
    given = sum(noise(rank, numel, step).double() for rank in range(size) for step in range(steps))
    found = size * sum(x.double() for x in told[0][0]) + sum(residual.double() for _, residual in told)
    assert torch.allclose(found, given, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_a_codec_without_loss_gives_the_exact_mean(size):
    """Whole numbers whose sums and means float16 holds: no rounding anywhere, by any schedule, of any length."""

    def whole(rank, numel, step):
        return size * (3 * noise(rank, numel, step)).round().clamp(-9, 9)

    for schedule in schedules(size).values():
        for numel in (0, 1, 13, 501):
            told = in_world(schedule, CodecSpec(name="fp16"), numel, draw=whole)
            mean = sum(whole(rank, numel, 0) for rank in range(size)) / size
            assert all(torch.equal(results[0], mean) and not owed.any() for results, owed in told)


def test_a_relay_and_a_root_that_had_handed_its_sum_over():
    """0 hands over to 1, a relay; 1 hands the sum of all back to 0, which has nothing by then, and is the root."""
    rounds = (
        (Move(source=0, target=1, block=0, kind="reduce"), Move(source=2, target=1, block=0, kind="reduce")),
        (Move(source=1, target=0, block=0, kind="reduce"),),
        (Move(source=0, target=1, block=0, kind="copy"),),
        (Move(source=1, target=2, block=0, kind="copy"),),
    )
    schedule = Schedule(name="there and back", num_ranks=3, num_blocks=1, rounds=rounds)
    (message,) = coded_rounds(schedule, [5])[1].messages
    assert (message.added, message.taken) == ((), (0,))
    wanted, owed = by_moves(schedule, INT4, 300, feedback=True, steps=3)
    for rank, (results, residual) in enumerate(in_world(schedule, INT4, 300, steps=3)):
        assert all(torch.equal(x, y) for x, y in zip(results, wanted, strict=True))
        assert torch.equal(residual, owed[rank])


def test_each_rank_encodes_each_block_once():
    for schedule in schedules(5).values():
        rounds = coded_rounds(schedule, [4] * schedule.num_blocks)
        encoded = [(m.source, b) for each in rounds for m in each.messages for b in m.encoded]
        means = [b for each in rounds for _, b in each.means]
        assert len(set(encoded)) == len(encoded)
        assert sorted(means) == list(range(schedule.num_blocks))


def test_a_value_that_is_not_finite_poisons_all_ranks_alike_and_no_residual():
    def spoilt(rank, numel, step):
        x = noise(rank, numel, step)
        if rank == 2 and step == 1:
            x[7] = torch.inf
        return x

    told = in_world(schedules(4)["relays"], INT4, 900, steps=3, draw=spoilt)
    for results, residual in told:
        assert results[0].isfinite().all()
        assert not results[1].isfinite().all()
        assert results[2].isfinite().all(), "nothing of it is fed back"
        assert residual.isfinite().all()
        assert all(torch.equal(a.isfinite(), b.isfinite()) for a, b in zip(results, told[0][0], strict=True))


def test_a_change_between_owners_and_a_schedule_keeps_what_is_owed(monkeypatch):
    """Whatever is on trial, and whatever remains, the sum of what was given arrives."""
    monkeypatch.setattr(background, "SolverProcess", SolvedAtOnce)

    def train(context):
        comm = ScheduledComm(context.comm, mesh(3, 8), solver=SolverOptions(after=5, limit_s=5.0, trials=5))
        average = coded_average(codec_from(SIGN), 700, comm, chunk_bytes=4096, owner_feedback=True, device=CPU)
        residual, given, got, seen = torch.zeros(700), torch.zeros(700).double(), torch.zeros(700).double(), set()
        for step in range(60):
            x = noise(context.rank, 700, step % 10)
            given += x
            average(x, step, residual)
            got += x
            seen.add(comm.num_scheduled)
            if not comm.is_searching:
                break
        return given, got, residual, seen, comm.is_searching

    told = run_world(3, train)
    given, owed = (sum(each[k].double() for each in told) for k in (0, 2))
    assert all(torch.equal(each[1], told[0][1]) for each in told)
    assert torch.allclose(3 * told[0][1] + owed, given, rtol=0, atol=1e-3)
    assert all(1 in seen and not is_searching for *_, seen, is_searching in told)


@pytest.mark.parametrize("text", ["bytegrad", "onebit", "tasc(0.5, block=4, power=0)"])
def test_training_in_codes_by_a_schedule_is_training(text):
    """Three ranks: equal weights on all of them, near those by owners of equal parts."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))

    schedule = schedules(3)["relays"]
    by = replace(pliant.parse(text), schedule=schedule)
    first, *others = run_world(3, lambda context: trained(context, start, by))
    assert all(torch.equal(first, other) for other in others)
    by_owners, *_ = run_world(3, lambda context: trained(context, start, text))
    assert torch.allclose(first, by_owners, atol=0.02 if text == "bytegrad" else 0.2)


FOUR = schedules(4)["relays"]
CODED = {
    "onebit": pliant.onebit(schedule=FOUR),
    "bytegrad by the family": pliant.bytegrad(schedule=schedules(4)["halving"]),
    "tasc": pliant.tasc(0.3, schedule=FOUR),
    "onebit_adam": pliant.onebit_adam(warmup_steps=3, schedule=FOUR),
}


@pytest.mark.parametrize("name", CODED)
def test_bytes_are_those_of_the_simulator(name):
    node = CODED[name]
    found = simulate(plan_of(node), workload_of(model()), hosts([2, 2]))
    sent = sent_by_engine(name, node, found.period)
    assert [round(x * found.period, 3) for x in found.sent_bytes] == sent


@pytest.mark.parametrize("schedule", ["auto", FOUR, mesh(3, 1)])
def test_plans_keep_schedules_of_sums_in_codes(schedule):
    for node in (
        pliant.int4(schedule=schedule),
        pliant.tasc(0.1, schedule=schedule),
        pliant.onebit_adam(schedule=schedule),
    ):
        assert pliant.parse(str(node)) == node
        assert from_json(type(plan_of(node)), to_json(plan_of(node))) == plan_of(node)


def test_auto_is_what_pays():
    """Over pairs that differ, a schedule; over hosts alike, what is predicted to be the faster of both."""
    workload = workload_of(nn.Linear(3000, 1000))
    for topology in (mesh(4, 3), hosts([1] * 4)):
        by_owners, auto = (simulate(plan_of(pliant.bytegrad(schedule=s)), workload, topology) for s in ("ring", "auto"))
        assert auto.step_s <= by_owners.step_s
        planned = with_schedules(plan_of(pliant.bytegrad(schedule="auto")), workload, topology)
        assert simulate(planned, workload, topology).step_s == pytest.approx(auto.step_s, rel=0.2)
        assert auto.step_s < by_owners.step_s / 1.5 or not isinstance(topology, Topology) or not topology.links


def test_schedules_of_other_ranks_are_refused():
    schedule = schedules(3)["relays"]
    workload = workload_of(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="is for 3 ranks, but 4 are simulated"):
        simulate(plan_of(pliant.int4(schedule=schedule)), workload, hosts([1] * 4))

    def make(context):
        with pytest.raises(ValueError, match="is for 3 ranks, but 2 average; make one"):
            ScheduledCodedAverage(schedule, codec_from(INT4), 8, context.comm, owner_feedback=True, device=CPU)

    run_world(2, make)


def test_ranks_with_other_schedules_are_told():
    one, other = schedules(2)["relays"], schedules(2, seed=5)["relays"]

    def make(context):
        schedule = (one, Schedule(**{**vars(other), "name": "another"}))[context.rank]
        with pytest.raises(ValueError, match="the schedule, or its codec, of ranks 1 differs"):
            ScheduledCodedAverage(schedule, codec_from(INT4), 8, context.comm, owner_feedback=True, device=CPU)

    run_world(2, make)


@pytest.mark.parametrize("node", [pliant.int4(schedule="auto"), pliant.allreduce(schedule="auto")])
def test_shards_have_no_schedules(node):
    with pytest.raises(ValueError, match=r"gradients of a sharded model travel in one codec, but .* is more than that"):
        pliant.sharded(gradients=node)
