"""Sums by schedules inside comms and plans: exact, alike on all ranks, and back where they do not pay."""

import gc
import math
import warnings
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import pliant
from pliant.algorithms.executors.coded_average import coded_average
from pliant.codecs import codec_from
from pliant.comm import RecordedComm, run_world
from pliant.comm.works import waited_for
from pliant.engine.plan_resolution import resolve_plan
from pliant.engine.stages import side_by_side
from pliant.schedules import SolverOptions, background as background_module, choice as choice_module
from pliant.schedules.choice import ScheduleChoice, SumKind
from pliant.schedules.dense import dense_candidates, dense_task, fastest_schedule
from pliant.schedules.scheduled_comm import ScheduledComm, scheduled
from pliant.simulator import simulate
from pliant.spec import AllReduce, CodecSpec, Rule, Schedule, SyncPlan, TensorSpec, Workload, from_json, save, to_json
from schedules.cases import SolvedAtOnce, hosts, trained
from schedules.test_dense import mesh
from waiting import until

SOON = SolverOptions(after=5, limit_s=5.0, trials=5)


def whole_numbers(rank, numel, dtype=torch.float32):
    return (20 * torch.randn(numel, generator=torch.Generator().manual_seed(rank))).round().to(dtype)


def total(size, numel, dtype=torch.float32):
    return sum(whole_numbers(rank, numel, dtype) for rank in range(size))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_given_schedule_adds_up_vectors_of_any_length(size, dtype):
    schedule = dense_candidates(1 << 20, mesh(size, 1))[0].schedule

    def train(context):
        comm = ScheduledComm(context.comm, schedule)
        found = []
        for numel in (1, 2, 7, 300, 1003):
            x = whole_numbers(context.rank, numel, torch.float32).clamp(-8, 8).to(dtype)
            comm.all_reduce(x).wait()
            found.append(x)
        return found

    first, *others = run_world(size, train)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    for x, numel in zip(first, (1, 2, 7, 300, 1003), strict=True):
        wanted = sum(whole_numbers(rank, numel).clamp(-8, 8) for rank in range(size))
        assert torch.equal(x.float(), wanted)


def test_the_bytes_are_those_of_the_moves():
    topology, numel = mesh(4, 2), 4096
    schedule = dense_candidates(4 * numel, topology)[0].schedule
    cuts = schedule.cuts(numel)
    wanted = [0] * 4
    for moves in schedule.rounds:
        for move in moves:
            wanted[move.source] += 4 * (cuts[move.block + 1] - cuts[move.block])

    def train(context):
        recorded = RecordedComm(context.comm)
        comm = ScheduledComm(recorded, schedule)
        comm.all_reduce(torch.ones(numel)).wait()  # compares schedules as well
        recorded.reset()
        comm.all_reduce(torch.ones(numel)).wait()
        return recorded.sent_bytes

    assert run_world(4, train) == wanted


def test_what_is_no_sum_of_numbers_is_handed_on():
    schedule = dense_candidates(1 << 20, mesh(3, 1))[0].schedule

    def train(context):
        comm = ScheduledComm(context.comm, schedule)
        most, count, none = torch.tensor([float(context.rank)]), torch.tensor([1]), torch.empty(0)
        comm.all_reduce(most, "max").wait()
        comm.all_reduce(count).wait()
        comm.all_reduce(none).wait()
        return float(most), int(count), comm.num_scheduled

    assert run_world(3, train) == [(2.0, 3, 0)] * 3


def test_rounds_of_several_sums_alternate_and_those_of_one_kind_follow_one_another():
    """A kind's buffers are for one sum at a time: the second one of 300 elements begins when the first has ended."""
    schedule = dense_candidates(1 << 20, mesh(3, 1))[0].schedule
    numels = (300, 300, 1003)

    def train(context):
        comm, stages = ScheduledComm(context.comm, schedule), 0
        for _ in range(3):
            found = [whole_numbers(context.rank, numel) for numel in numels]
            stages = sum(1 for _ in side_by_side([waited_for(comm.all_reduce(x)) for x in found]))
            assert all(torch.equal(x, total(3, numel)) for x, numel in zip(found, numels, strict=True))
        return stages

    assert run_world(3, train) == [len(schedule.rounds)] * 3


def test_a_mean_in_codes_by_a_given_schedule_yields_in_each_round_and_in_one_stage_while_ways_are_judged():
    codec = codec_from(CodecSpec(name="minmax8"))
    schedule = dense_candidates(1 << 20, mesh(3, 1))[0].schedule

    def train(context):
        seen = []
        for way in (schedule, mesh(3, 1)):
            comm = ScheduledComm(context.comm, way, solver=replace(SOON, after=1000))
            average = coded_average(
                codec, 2000, comm, chunk_bytes=1 << 20, owner_feedback=False, device=torch.device("cpu")
            )
            x = whole_numbers(context.rank, 2000)
            seen.append(sum(1 for _ in average.stages(x, 0)))
            seen.append(x)
            comm.close()
        return seen

    for given, x, judged, y in run_world(3, train):
        assert (given, judged) == (len(schedule.rounds), 0)
        mean = total(3, 2000) / 3
        for found in (x, y):
            torch.testing.assert_close(found, mean, atol=1.0, rtol=0)


@pytest.mark.extended
def test_a_search_beside_training_ends_with_the_faster_of_both():
    """On one machine the backend's own sum is faster than four rounds: all change, measure, and return together."""

    def train(context):
        comm = ScheduledComm(context.comm, mesh(3, 1), solver=SOON)
        seen = []
        for _ in range(20_000):
            x = whole_numbers(context.rank, 2000)
            comm.all_reduce(x).wait()
            assert torch.equal(x, total(3, 2000))
            seen.append(comm.num_scheduled)
            if not comm.is_searching:
                break
        return seen

    first, *others = run_world(3, train)
    assert all(other == first for other in others)
    assert 1 in first, "what was found is tried"
    assert len(first) < 20_000, "the search comes to an end"


def test_a_solver_that_fails_leaves_sums_as_they_are(monkeypatch):
    class Failed:
        def __init__(self, task):
            pass

        def has_ended(self):
            return True

        def result(self):
            raise RuntimeError("it has no memory left")

        def close(self):
            pass

    monkeypatch.setattr(background_module, "SolverProcess", Failed)

    def train(context):
        comm = ScheduledComm(context.comm, mesh(2, 1), solver=SOON)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(40):
                x = whole_numbers(context.rank, 100)
                comm.all_reduce(x).wait()
        assert torch.equal(x, total(2, 100))
        return comm.is_searching, [str(each.message) for each in caught if "no memory" in str(each.message)]

    told = run_world(2, train)
    assert [searching for searching, _ in told] == [False, False]


@pytest.mark.parametrize("pause_s", [0.0, 2.5])
def test_a_search_counts_the_pause_before_the_sums(pause_s, monkeypatch):
    """What is found, and what it is held against, start as slowly as they will between steps."""
    clock, tasks, sum_s = [0.0], [], 0.25

    class Search:
        def __init__(self, task):
            tasks.append(task)

        def close(self):
            pass

    monkeypatch.setattr(background_module, "SolverProcess", Search)
    monkeypatch.setattr(choice_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    topology, predicted = mesh(2, 1), []

    def predict(network, overheads):
        predicted.append((network, overheads))
        return 1.0

    def train(context):
        choice = ScheduleChoice(context.comm, topology, overheads=None, solver=SOON)
        kind = SumKind(
            name="x",
            task=dense_task(1 << 20, 2),
            device=torch.device("cpu"),
            without_s=predict,
            make=lambda _: None,
        )
        for k in range(SOON.after + 1):
            choice.way(kind)
            if context.rank == 0:
                start_s = clock[0] + (100.0 if k == 0 else pause_s)  # before the first lies the start of the run
                clock[0] = start_s + sum_s
                choice.note(kind, start_s)
        choice.close()

    run_world(2, train)
    (task,), ((network, overheads),) = tasks, predicted
    assert task.overheads.pause_s == overheads.pause_s == pause_s
    assert task.topology == network == topology
    assert task.collective.block_bytes == (1 << 20,)


def test_kinds_that_come_no_more_keep_nothing_open(monkeypatch):
    """A model's first buckets come once; those that come again, however late, are searched for after all."""
    monkeypatch.setattr(background_module, "SolverProcess", SolvedAtOnce)

    def train(context):
        comm = ScheduledComm(context.comm, mesh(2, 1), solver=SOON)

        def add_up(numel):
            x = whole_numbers(context.rank, numel)
            comm.all_reduce(x).wait()
            assert torch.equal(x, total(2, numel))

        def settle(numel):
            for call in range(500):
                if not comm.is_searching:
                    return call
                add_up(numel)
            return -1

        add_up(900)
        first = settle(60)
        for _ in range(SOON.after - 1):
            add_up(900)
            assert comm.is_searching
            settle(60)
        add_up(900)  # one call more, which starts a search
        last = settle(900)
        searched = [each.searched for each in comm.choice._solver._watched.values()] if comm.rank == 0 else []
        comm.choice.close()
        return first, last, searched

    (first, last, searched), (*others, _) = run_world(2, train)
    assert [first, last] == others
    assert first > 0
    assert last > 0
    assert searched == [True, True]


def test_kinds_of_sums_keep_no_vector_and_no_comm():
    """Else each length would hold a vector, and a search would outlive its run until garbage is collected."""

    def train(context):
        gc.disable()
        comm, x = ScheduledComm(context.comm, mesh(2, 1)), torch.ones(7)
        comm.all_reduce(x).wait()
        kept = weakref.ref(x), weakref.ref(comm)
        del x
        comm.choice.close()
        del comm
        until(lambda: kept[0]() is None)  # a thread of Gloo's may hold it for a moment
        return kept[1]() is None

    try:
        assert run_world(2, train) == [True, True]
    finally:
        gc.enable()


def test_one_comm_serves_all_who_ask_for_the_same():
    schedule = dense_candidates(1 << 20, mesh(2, 1))[0].schedule

    def train(context):
        one, other = scheduled(context.comm, schedule), scheduled(context.comm, schedule)
        assert scheduled(context.comm, "ring") is context.comm
        return one is other

    assert run_world(2, train) == [True, True]


def test_wrong_sizes_and_unknown_links_are_refused():
    schedule = dense_candidates(1 << 20, mesh(3, 1))[0].schedule

    def train(context):
        with pytest.raises(ValueError, match="is for 3 ranks, but 2 add up"):
            ScheduledComm(context.comm, schedule)
        with pytest.raises(ValueError, match="the topology has 3 ranks on 3 hosts, but 2 ranks add up"):
            ScheduledComm(context.comm, mesh(3, 1))
        with pytest.raises(ValueError, match="nobody has measured"):
            scheduled(context.comm, "auto")

    run_world(2, train)


def test_one_rank_for_each_host_may_have_the_topology_of_all():
    def train(context):
        comm = ScheduledComm(context.comm, hosts([2, 2]))
        x = torch.ones(3)
        comm.all_reduce(x).wait()
        return x.tolist()

    assert run_world(2, train) == [[2.0] * 3] * 2


TEXTS = [
    "allreduce",
    "bf16",
    "randomk(0.5)",
    "powersgd(rank=1)",
    "tasc(0.5, block=4, value_bits=32, power=0)",
    "local_sgd(period=2, averaging=allreduce)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_training_by_a_schedule_is_training(text, tmp_path):
    """Three ranks: the same weights as by the ring, to rounding, and equal on all ranks."""
    schedule = tmp_path / "schedule.json"
    save(dense_candidates(1 << 12, mesh(3, 1))[0].schedule, schedule)

    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()

    where = f"schedule={str(schedule)!r}"
    if text.startswith("local_sgd"):
        by = f"local_sgd(period=2, averaging=allreduce({where}))"
    else:
        by = f"{text[:-1]}, {where})" if text.endswith(")") else f"{text}({where})"
    ring, *_ = run_world(3, lambda context: trained(context, start, text))
    first, *others = run_world(3, lambda context: trained(context, start, by))
    assert all(torch.equal(first, other) for other in others)
    assert torch.allclose(first, ring, atol=1e-2 if text == "bf16" else 1e-5)


def test_auto_measures_the_links_once_and_trains():
    def train(context):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, "allreduce(schedule=auto)", group=context.process_group) as run:
            for _ in range(3):
                run.model(torch.ones(2, 4) * context.rank).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return str(run.plan), model.weight.detach().clone()

    (text, first), (_, second) = run_world(2, train)
    assert "schedule='auto'" in text
    assert torch.equal(first, second)


@pytest.mark.parametrize("schedule", ["auto", mesh(3, 1), fastest_schedule(1 << 22, mesh(3, 1))])
def test_plans_keep_their_schedules_in_json_and_text(schedule):
    node = AllReduce(schedule=schedule)
    plan = resolve_plan(node, torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    assert from_json(SyncPlan, to_json(plan)) == plan
    assert pliant.parse(str(node)) == node
    if schedule != "auto":
        assert len(str(plan)) < 200 < len(str(node)), "what a person reads has its name alone"


def test_words_that_are_no_schedule_are_refused(tmp_path):
    with pytest.raises(ValueError, match="schedule must be one of 'ring', 'auto', got 'tree'"):
        AllReduce(schedule="tree")
    with pytest.raises(ValueError, match="neither 'ring' nor 'auto', nor a file"):
        pliant.parse("allreduce(schedule='missing.json')")
    with pytest.raises(ValueError, match="that all ranks agree on; set agreement='leader'"):
        pliant.parse("tasc(agreement='local', schedule=auto)")
    topology = tmp_path / "links.json"
    save(mesh(3, 1), topology)
    assert pliant.parse(f"allreduce(schedule={str(topology)!r})").schedule == mesh(3, 1)


def test_the_simulator_takes_the_schedule_that_pays():
    topology = mesh(4, 3)
    schedule = fastest_schedule(4 * 2_000_000, topology)
    assert isinstance(schedule, Schedule)
    workload = Workload(
        name="one tensor",
        tensors=(TensorSpec(name="w", shape=(2_000_000,), dtype="float32", layer="Linear", ready_s=0.01),),
        forward_s=0.01,
        backward_s=0.02,
        step_s=0.03,
    )

    def simulated(node):
        plan = SyncPlan(rules=(Rule(exchange=node),), bucket_bytes=1 << 30)
        return simulate(plan, workload, topology)

    ring, auto, given = (simulated(AllReduce(schedule=each)) for each in ("ring", "auto", schedule))
    assert auto.step_s < ring.step_s / 2
    assert auto.step_s == pytest.approx(given.step_s, rel=0.2)
    sent = np.zeros(4)
    for moves in schedule.rounds:
        for move in moves:
            sent[move.source] += 8_000_000 * schedule.shares[move.block]
    assert np.allclose(given.sent_bytes, sent, rtol=1e-3)
    assert not math.isclose(auto.step_s, ring.step_s)
