"""Exchanges in stages: each bucket's in the same order on all ranks, beside those of others, with the same results."""

import math
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
import pliant.engine.run as runs
from engine.device_steps import CPU, SHAPES as STEP_SHAPES, StepRun
from pliant.comm.private_comm import self_comm
from pliant.comm.recorded import RecordedComm
from pliant.engine import gradient_exchange
from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.ddp_hook import ReadyBucket
from pliant.engine.shard_groups import UngatheredError
from pliant.engine.sharded_hooks import GatherWork
from pliant.engine.stages import do_all, side_by_side
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled

SHAPES = [(40, 30), (2000,), (7,), (60, 50), (3,), (64, 64)]
SIZE, STEPS = 3, 5
WAITS_FOR_NOBODY = {
    "delayed_nesterov",
    "decoupled_diloco",
    "gossip-free",
    "async_average",
    "stale-free",
    "choco-free",
    "halos",
    "halos-alone",
    "stale-coded",
    "bounded_staleness",
}


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(shape) for shape in SHAPES])

    def forward(self, *data):
        return torch.stack([(w * x).sum() for w, x in zip(self.weights, data, strict=True)]).sum()


def trained(name):
    def body(place):
        module = Weighted()
        model = DistributedDataParallel(module, process_group=place.process_group, bucket_cap_mb=0.005)
        optimizer = optimizer_for(name, module.parameters())
        generator = torch.Generator().manual_seed(place.rank)
        what = (ALGORITHMS | BETWEEN_STEPS)[name]
        with pliant.relax(model, optimizer, what, group=place.process_group, hosts=[[0, 1], [2]], timeout_s=20) as run:
            for _ in range(STEPS):
                optimizer.zero_grad()
                run.model(*(torch.randn(shape, generator=generator) for shape in SHAPES)).backward()
                optimizer.step()
            threads = len(run._comm_thread._queues)
        return torch.cat([w.detach().view(-1) for w in module.parameters()]), run._comm.sent_bytes, threads

    return pliant.run_world(SIZE, body, timeout_s=40)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sampled(sorted((ALGORITHMS | BETWEEN_STEPS).keys() - WAITS_FOR_NOBODY)))
def test_three_threads_make_what_one_makes(name, monkeypatch):
    """To the bit, with as many bytes."""
    wanted = trained(name)
    monkeypatch.setattr(runs, "is_accelerator", lambda device: True)
    found = trained(name)
    assert {threads for *_, threads in wanted} == {1}
    assert {threads for *_, threads in found} == {3}
    for (own, sent, _), (other, as_sent, _) in zip(wanted, found, strict=True):
        assert torch.equal(own, other)
        assert sent == as_sent


@pytest.fixture
def threads():
    made = []

    def make(num_stages):
        made.append(CommThread(CPU, "lane", Tracer(CPU, RecordedComm(self_comm())), num_stages))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_one_bucket_is_in_its_second_stage_while_the_next_is_in_its_first(threads):
    """Two exchanges meet there, which neither could in turns."""
    meeting, said = threading.Barrier(2, timeout=20), []

    def first():
        yield
        meeting.wait()
        yield
        said.append("first")

    def second():
        meeting.wait()
        yield
        yield
        said.append("second")

    lane = threads(3)
    for stages in (first(), second()):
        lane.submit_stages(stages, lambda: None, name="", step=0)
    lane.submit(lambda: said.append("alone"))
    lane.drain()
    assert said == ["first", "second", "alone"]


@pytest.mark.parametrize("num_stages", [1, 3])
def test_each_stage_has_the_order_of_submission(num_stages, threads):
    begun = [[], [], []]

    def stages(k):
        for stage in range(1 + k % 3):  # not all have as many
            begun[stage].append(k)
            yield

    lane, done = threads(num_stages), []
    for k in range(30):
        lane.submit_stages(stages(k), lambda k=k: done.append(k), name="", step=0)
    lane.drain()
    assert done == list(range(30))
    assert all(each == sorted(each) for each in begun)


@pytest.mark.parametrize("fails_in", [0, 1, 2])
def test_after_a_failure_later_exchanges_are_dropped_and_all_are_handed_back(fails_in, threads):
    held, done, ended = threading.Event(), [], []

    def stages(k):
        if k == 0:
            held.wait(20)
        for stage in range(3):
            if (k, stage) == (1, fails_in):
                raise ValueError("the wire is cut")
            yield
        ended.append(k)

    lane = threads(3)
    for k in range(4):
        lane.submit_stages(stages(k), lambda k=k: done.append(k), name="", step=0)
    late = lane.submit(lambda: ended.append("alone"))
    held.set()
    with pytest.raises(ValueError, match="the wire is cut"):
        late.wait()
    lane.drain()  # it is raised once
    assert done == [0, 1, 2, 3]
    assert ended in ([], [0])
    lane.submit(lambda: ended.append("next"))
    lane.drain()
    assert ended[-1] == "next"


def test_weights_whose_gather_failed_are_not_used_though_somebody_else_has_heard_of_it(threads):
    """As whoever saves a run: it waits for all gathers, also for those that no pass has used yet."""

    def changed():
        raise RuntimeError("weights were changed")

    lane, forgotten = threads(1), []
    group = SimpleNamespace(name="a block", forget_gather=lambda: forgotten.append(1))
    works = [GatherWork(lane.submit(task), group) for task in (changed, lambda: None)]
    with pytest.raises(RuntimeError, match="weights were changed"):
        lane.drain()
    for work in works:
        with pytest.raises(UngatheredError, match="the weights of a block were not gathered"):
            work.wait()
    assert len(forgotten) == 2
    assert GatherWork(lane.submit(lambda: None), group).wait()


@pytest.mark.parametrize("num_stages", [1, 3])
def test_a_bucket_that_cannot_be_handed_back_raises_where_it_is_waited_for(num_stages, threads):
    """As where an accelerator has failed. The threads live on, or later tasks would be waited for in vain."""

    def refuse():
        raise ValueError("the device is lost")

    lane, said = threads(num_stages), []
    handed_back = lane.submit_stages((None for _ in range(3)), refuse, name="", step=0)
    with pytest.raises(ValueError, match="the device is lost"):
        handed_back.wait()
    lane.submit(lambda: said.append("next")).wait()
    assert said == ["next"]


def test_works_side_by_side_go_stage_by_stage_and_keep_their_results():
    said = []

    def work(name, num):
        for k in range(num):
            said.append(f"{name}{k}")
            yield
        return name

    assert do_all(side_by_side([work("a", 1), work("b", 3), work("c", 0)])) == ["a", "b", "c"]
    assert said == ["a0", "b0", "b1", "b2"]
    assert do_all(side_by_side([])) == []


def test_where_one_work_raises_the_others_end_what_is_under_way():
    said = []

    def sends():
        try:
            yield
            said.append("next stage")
        finally:
            said.append("waited")

    def breaks():
        raise ValueError("broken")
        yield

    with pytest.raises(ValueError, match="broken"):
        do_all(side_by_side([sends(), breaks()]))
    assert said == ["waited"]


def test_where_one_work_raises_and_another_cannot_end_all_others_are_closed():
    closed = []

    def sends(k):
        try:
            yield
        finally:
            closed.append(k)
            if k == 1:
                raise pliant.CommError("cut", rank=0, op="exchange")

    def breaks():
        raise ValueError("broken")
        yield

    with pytest.raises(pliant.CommError, match="cut"):
        do_all(side_by_side([sends(0), sends(1), sends(2), breaks()]))
    assert closed == [0, 1, 2]


class Exchanges:
    """Exchanges that leave work: the first bucket's ends in the third thread, after that of the second in the first."""

    findings = SimpleNamespace(pop_error=lambda: None)

    def __init__(self, said):
        self._said, self._third = said, threading.Event()

    def knows(self, index, names):
        return True

    def layout_of(self, index, names, shapes, buffer):
        return SimpleNamespace(index=index, name=f"bucket {index}", keeps_local=lambda step: False)

    def check_finite(self, bucket, buffer):
        return -1

    def stages(self, bucket, buffer, found, *, step, num_backwards):
        if bucket.index == 0:
            yield
            yield
            self._third.wait(20)
        if bucket.index == 2:
            self._third.set()
        return [(bucket.name, lambda: self._said.append(bucket.index))]

    def end_pass(self):
        pass


def test_what_exchanges_leave_is_done_in_one_order_whichever_thread_ends_them(threads):
    """Else the ranks' deferred messages would cross."""
    said, lane = [], threads(3)
    dispatcher = BucketDispatcher(lane, Tracer(CPU, RecordedComm(self_comm())), PlanOnTrial())
    dispatcher.put_in_force(Exchanges(said), as_ready=True)
    for k in range(3):
        given = {"names": (f"p{k}",), "shapes": ((1,),), "buffer": torch.zeros(1), "finish": lambda: None}
        dispatcher.receive(ReadyBucket(index=k, last=k == 2, **given))
    lane.drain()
    assert said == [0, 1, 2]


def exchange(gradients, index, name, value):
    """Exchange a bucket of one parameter, all of one value."""
    buffer = torch.full((math.prod(STEP_SHAPES[name]),), value)
    bucket = gradients.layout_of(index, (name,), (STEP_SHAPES[name],), buffer)
    gradients.run(bucket, buffer, -1, step=0, num_backwards=0)


def test_an_overflow_is_noted_while_another_thread_looks_at_its_result(monkeypatch):
    """Else a step that a GradScaler skips would not be undone."""
    look = gradient_exchange.nonfinite

    def body(place):
        run = StepRun(place, pliant.onebit(), CPU, "propagate")

        def look_late(x):
            monkeypatch.setattr(gradient_exchange, "nonfinite", look)
            exchange(run.gradients, 1, "d", torch.inf)
            return look(x)

        monkeypatch.setattr(gradient_exchange, "nonfinite", look_late)
        exchange(run.gradients, 0, "a", 1.0)
        run.gradients.end_pass()
        run.gradients.take_back({"a": torch.ones(STEP_SHAPES["a"])})
        run.close()
        return bool(run.store.tensors["a"]["residual"].any())

    assert pliant.run_world(1, body) == [False]


def test_an_overflow_before_an_earlier_plans_gradients_are_paid_leaves_them_owed():
    def body(place):
        run = StepRun(place, pliant.allreduce(), CPU, "propagate")
        run.gradients.owed["d"] = torch.ones(STEP_SHAPES["d"])
        for index, (name, value) in enumerate([("a", torch.inf), ("d", 1.0)]):
            exchange(run.gradients, index, name, value)
        run.gradients.end_pass()
        run.close()
        return list(run.gradients.owed)

    assert pliant.run_world(1, body) == [["d"]]
