"""Exact means in few rounds: what they give and send, what overlaps, and that what was saved before still loads."""

import json

import numpy as np
import pytest
import torch

import pliant
from models import new_ddp, train, weights
from pliant.algorithms import executor_for
from pliant.algorithms.base import State, StepContext
from pliant.algorithms.by_name import plan_of_text
from pliant.buckets import Bucket
from pliant.comm import RecordedComm, run_world
from pliant.comm.wrapped import WrappedComm
from pliant.engine.step_counts import plan_number
from pliant.layouts.rounds import average_form
from pliant.netmodel import BucketBatch
from pliant.simulator import simulate
from pliant.simulator.traffic import traffic_of
from pliant.spec import Host, Rule, SyncPlan, Topology, from_json, to_json
from simulator.cases import cluster, even

FEW, RING = pliant.allreduce(few_rounds=True), pliant.allreduce()
FORMS = {1: "halves", 7: "halves", 1 << 16: "halves", (1 << 16) + 1: "halves", 1 << 17: "halves", (1 << 17) + 1: "ring"}
"""Elements on both sides of where the form changes, and the form; two ranks gather up to 256 KB."""
BEFORE = """{"pliant": "SyncPlan", "format": 2, "name": "onebit", "rules": [
  {"match": {"max_numel": 8192}, "exchange": {"type": "AllReduce"}},
  {"exchange": {"type": "ScatterGather", "codec": {"type": "sign"}, "feedback": "both"}}]}"""
"""What `onebit` stood for when small parameters went around a ring."""


def form_of(numel, size):
    return "gather" if size == 2 and numel <= 1 << 16 else FORMS[numel]


def vector(rank, numel, dtype=torch.float32):
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype)


class Collectives(WrappedComm):
    """A comm as over NCCL, which prefers one collective to messages."""

    prefers_collectives = True


def averaged(comm, node, x, *, prescaled=False):
    """Return the mean of x, and what a second exchange has sent."""
    counted, bucket = RecordedComm(comm), Bucket(name="small", spans=(), flat=x.clone())
    executor = executor_for(node)
    state = State(workspace=executor.prepare(bucket, counted))
    exchange = executor.on_prescaled if prescaled else executor.on_ready
    for _ in range(2):
        counted.reset()
        bucket.flat.copy_(x)
        exchange(bucket, state, counted, StepContext(step=0, seed=0))
    return bucket.flat, counted


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_mean_is_that_in_float64_and_everybodys_and_sends_what_is_predicted(size):
    def body(place):
        return [averaged(place.comm, FEW, vector(place.rank, numel)) for numel in FORMS]

    results = run_world(size, body, timeout_s=30)
    for k, numel in enumerate(FORMS):
        form = form_of(numel, size)
        assert average_form(numel, size, in_parts=True) == form
        mean = sum(vector(rank, numel).double() for rank in range(size)) / size
        first = results[0][k][0]
        torch.testing.assert_close(first.double(), mean, rtol=0, atol=4 * size * 2**-24)
        batch = BucketBatch(numel=np.array([float(numel)]), itemsize=np.array([4.0]))
        rounds = traffic_of(FEW, batch, cluster(size)).task
        assert sum(each.repeat for each in rounds) == {"gather": 1, "halves": 2, "ring": 2 * (size - 1)}[form]
        sent = sum(each.sent(size) for each in rounds)[0]
        messages = sum(len(each.messages.source) * each.repeat for each in rounds) / size
        for rank, found in enumerate(results):
            x, counted = found[k]
            assert torch.equal(x, first)
            assert (counted.sent_bytes, counted.sent_messages) == (sent[rank], messages)
            assert counted.sent_bytes <= 2 * (size - 1) * 4 * -(-numel // size)  # a ring's, but for what fills parts up


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_gradients_stay_in_their_type_and_may_come_divided(dtype):
    def body(place):
        x = vector(place.rank, 1001, dtype)
        whole, counted = averaged(place.comm, FEW, x)
        divided, _ = averaged(place.comm, FEW, x.mul(1 / 3), prescaled=True)
        assert whole.dtype == dtype
        assert counted.sent_bytes == 4 * 334 * dtype.itemsize
        assert torch.equal(whole, divided)
        return whole

    first, *others = run_world(3, body)
    mean = sum(vector(rank, 1001, dtype).double() for rank in range(3)) / 3
    torch.testing.assert_close(first.double(), mean, rtol=0, atol=8 * torch.finfo(dtype).eps)
    assert all(torch.equal(first, other) for other in others)


def test_where_collectives_are_preferred_it_is_the_all_reduce_to_the_bit():
    def body(place):
        x = vector(place.rank, 1001)
        few, counted = averaged(Collectives(place.comm), FEW, x)
        ring, _ = averaged(place.comm, RING, x)
        return torch.equal(few, ring), dict(counted.calls)

    assert run_world(3, body) == [(True, {"all_reduce": 1})] * 3
    gpus = Topology(hosts=tuple(Host(name=f"h{k}", num_ranks=8, machine="h100") for k in range(2)))
    few, ring = (simulate(SyncPlan(rules=(Rule(exchange=node),)), even(), gpus) for node in (FEW, RING))
    assert few.step_s == ring.step_s


class Listed(WrappedComm):
    """Notes what is sent, under the first tag or the second, and what is waited for."""

    def __init__(self, comm):
        super().__init__(comm)
        self.said, self.tags = [], {}

    def exchange(self, sends, receives, *, turn=0, tag=0, patience_s=None):
        self.tags.setdefault(tag, ("first", "second")[len(self.tags)])
        self.said.append(self.tags[tag])
        work = self._comm.exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)
        return _Noted(work, self.said)


class _Noted:
    def __init__(self, work, said):
        self._work, self._said = work, said

    def wait(self):
        self._said.append("wait")
        self._work.wait()


@pytest.mark.parametrize(
    ("size", "stages"), [(2, [["first"], ["wait"]]), (3, [["first"], ["wait", "second"], ["wait"]])]
)
def test_between_two_stages_messages_are_on_their_way(size, stages):
    """So that they take no time beside the codes of the same bucket."""

    def body(place):
        comm, bucket = Listed(place.comm), Bucket(name="small", spans=(), flat=vector(place.rank, 1001))
        executor, found = executor_for(FEW), []
        state = State(workspace=executor.prepare(bucket, comm))
        for _ in executor.stages(bucket, state, comm, StepContext(step=0, seed=0)):
            found.append(list(comm.said))
            comm.said.clear()
        return [*found, comm.said]

    assert run_world(size, body) == [stages] * size


def test_plans_say_which_way_they_mean_and_files_of_before_mean_a_ring():
    before, now = from_json(SyncPlan, BEFORE), plan_of_text("onebit")
    assert [rule.exchange for rule in before.rules[:1]] == [RING]
    assert [rule.exchange for rule in now.rules[:1]] == [FEW]
    assert before.rules[1] == now.rules[1]
    assert json.loads(to_json(before)) == json.loads(BEFORE)
    assert from_json(SyncPlan, to_json(now)) == now
    assert "AllReduce(few_rounds=True)" in str(now)
    assert before.hash != now.hash
    assert plan_number(before) == plan_number(now) != plan_number(plan_of_text("int4"))


def test_a_run_by_name_goes_on_from_what_was_saved_around_a_ring():
    """To the bit on two ranks, whose sums know one order."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, from_json(SyncPlan, BEFORE), timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(3))
            state, at = run.state_dict(), {key: value.clone() for key, value in ddp.state_dict().items()}
            state = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, state)
            train(ddp, optimizer, place.rank, range(3, 6))
        wanted = weights(ddp)
        ddp = new_ddp(place)
        ddp.load_state_dict(at)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, "onebit", timeout_s=20) as run:
            run.load_state_dict(state)
            train(ddp, optimizer, place.rank, range(3, 6))
        return torch.equal(wanted, weights(ddp))

    assert run_world(2, body, timeout_s=30) == [True, True]
