"""What a timeline says: everything the run has counted, in order, and that the training does not notice."""

import itertools
import threading
import time

import pytest
import torch

import pliant
from models import new_ddp, train, weights
from pliant.algorithms.plans import plan_of
from pliant.codecs.minmax8 import MinMax8
from pliant.comm import run_world
from pliant.comm.pending import PendingWorks
from pliant.engine.attachments import AttachedTuner
from pliant.engine.comm_thread import TaskHandle
from pliant.spec import load
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled

ROWS = {**ALGORITHMS, **BETWEEN_STEPS}
PACED = {"gossip-free", "choco-free", "async_average", "delayed_nesterov", "decoupled_diloco", "stale-free"}
PACED |= {"halos", "halos-alone"}
"""What these exchange, and when, is a matter of time."""


def trained(place, name, folder=None):
    """Train eight steps, and record from the third on; return the bytes of these, the weights, and the recording."""
    ddp = new_ddp(place)
    optimizer = optimizer_for(name, ddp.parameters())
    hosts = [[0], [1]] if name == "between-hosts" else None
    with pliant.relax(ddp, optimizer, ROWS[name], hosts=hosts, timeout_s=20) as run:
        train(run.model, optimizer, place.rank, range(2))
        run._comm_thread.drain()
        before = run.stats()["sent_bytes"]
        recording = pliant.profile(run, folder, steps=6, warmup_steps=0) if folder is not None else None
        train(run.model, optimizer, place.rank, range(2, 8))
        sent = run.stats()["sent_bytes"] - before
    return sent, weights(ddp), recording


@pytest.mark.parametrize("name", sampled(ROWS))
def test_a_timeline_holds_all_that_was_sent_and_changes_nothing(name, tmp_path):
    recorded = run_world(2, lambda place: trained(place, name, tmp_path))
    plain = run_world(2, lambda place: trained(place, name))
    node = ROWS[name]
    # Late ones may be on their way at the end; what ranks agree on a ratio by belongs to no exchange.
    less = node.timing.delay_steps > 0 or node.steps_beside or name == "dcd" or node.ratio_target
    for rank, ((sent, mine, recording), (_, others, _)) in enumerate(zip(recorded, plain, strict=True)):
        found = load(pliant.Timeline, tmp_path / f"rank{rank}.json")
        assert found == recording.timeline()
        assert recording.done
        assert not recording.open
        assert found.num_ranks == 2
        assert found.began_unix_s > 0
        assert {e.rank for e in found.events} == {rank}
        assert {e.step for e in found.events if e.kind == "forward"} == set(range(2, 8))
        assert {e.step for e in found.events if e.kind == "optimize"} == set(range(2, 8))
        assert [e.end_s for e in found.events] == sorted(e.end_s for e in found.events)
        if name in PACED:
            continue
        assert all(0 <= e.start_s <= e.end_s for e in found.events)
        assert torch.equal(mine, others)
        told = sum(e.sent_bytes for e in found.events)
        assert told > 0
        assert told <= sent if less else told == sent
        assert node.staleness_bound is not None or any(e.kind == "exchange" for e in found.events)


def recorded_alone(what="bytegrad", **options):
    """Return the timeline of rank 0 of two, that of its steps, and the run's own figures for these."""

    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        with pliant.relax(ddp, optimizer, what, timeout_s=20, agreement_every=0) as run:
            train(run.model, optimizer, place.rank, range(3))
            run._comm_thread.drain()
            before = run.stats()
            with pliant.profile(run, steps=5, warmup_steps=0, **options) as recording:
                train(run.model, optimizer, place.rank, range(3, 8))
                after = run.stats()
        return recording.timeline(), {key: after[key] - before[key] for key in ("exposed_s", "exchange_s", "codec_s")}

    return run_world(2, body)[0]


def total(timeline, *kinds):
    return sum(e.end_s - e.start_s for e in timeline.events if e.kind in kinds)


@pytest.fixture
def work_alone_takes_time(monkeypatch):
    """Clocks, one of each thread, that stand still but in these calls; what a busy machine does is not in them."""
    here = threading.local()
    monkeypatch.setattr(time, "perf_counter", lambda: getattr(here, "now_s", 0.0))

    def slowed(real, took_s):
        def call(*given):
            result = real(*given)
            here.now_s = time.perf_counter() + took_s
            return result

        return call

    for owner, name, took_s in ((PendingWorks, "wait", 4.0), (TaskHandle, "wait", 32.0), (MinMax8, "encode", 0.5)):
        monkeypatch.setattr(owner, name, slowed(getattr(owner, name), took_s))


@pytest.mark.usefixtures("work_alone_takes_time")
def test_times_are_those_that_the_run_counts():
    found, stats = recorded_alone()
    assert total(found, "wait") == stats["exposed_s"] > 0
    assert total(found, "exchange") == stats["exchange_s"] > stats["codec_s"]
    assert total(found, "encode", "decode") == stats["codec_s"] > 0
    assert found.plan == plan_of(pliant.bytegrad()).hash


def test_what_lies_within_an_exchange_is_of_it_and_does_not_overlap():
    found, _ = recorded_alone()
    exchanges = [e for e in found.events if e.kind == "exchange"]
    coding = sorted((e for e in found.events if e.kind in ("encode", "decode")), key=lambda e: e.start_s)
    assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(coding))
    for part in (e for e in found.events if e.kind in ("encode", "decode", "communicate")):
        assert any(
            (e.name, e.step) == (part.name, part.step) and e.start_s <= part.start_s <= part.end_s <= e.end_s
            for e in exchanges
        )
    assert {e.kind for e in coding} == {"encode", "decode"}


def alone(place, **options):
    ddp = new_ddp(place)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    return ddp, optimizer, pliant.relax(ddp, optimizer, "bytegrad", timeout_s=20, **options)


def test_warm_up_steps_are_left_out_and_hooks_go(tmp_path):
    def body(place):
        ddp, optimizer, run = alone(place)
        with run:
            recording = pliant.profile(run, tmp_path, steps=2, warmup_steps=2)
            train(ddp, optimizer, place.rank, range(3))
            with pytest.raises(ValueError, match="2 steps after 2, but 3 were made"):
                recording.timeline()
            assert recording.open
            with pytest.raises(RuntimeError, match="is being recorded already"):
                pliant.profile(run)
            train(ddp, optimizer, place.rank, range(3))
            assert not run.tracer.on
            with pytest.raises(ValueError, match=r"rank0\.json is to be written, but its folder does"):
                pliant.profile(run, tmp_path / "rank0.json")
            assert not recording._hooks
            assert pliant.profile(run, steps=1) is run.profile
        return {e.step for e in recording.timeline().events}

    assert run_world(1, body) == [{2, 3}]


def test_a_run_that_ends_or_switches_ends_the_recording_with_the_steps_there_are(tmp_path):
    def body(place):
        ddp, optimizer, run = alone(place)
        with run:
            first = pliant.profile(run, tmp_path / "first", steps=9, warmup_steps=1)
            train(ddp, optimizer, place.rank, range(3))
            run.switch("allreduce")
            second = pliant.profile(run, tmp_path / "second", steps=9, warmup_steps=0)
            train(ddp, optimizer, place.rank, range(1))
            assert second.open
            assert not second.done
        return [({e.step for e in each.timeline().events}, each.timeline().plan) for each in (first, second)]

    ((first, plan), (second, other)) = run_world(1, body)[0]
    assert (first, second) == ({1, 2}, {3})
    assert plan != other
    assert (tmp_path / "first" / "rank0.json").exists()
    assert (tmp_path / "second" / "rank0.json").exists()


def test_a_plan_may_be_switched_within_the_optimizers_hooks():
    """As auto does it: there no hook may go."""

    class Chooser(AttachedTuner):
        def __init__(self, run):
            self.run = run

        def after_step(self, step):
            if step == 3:
                self.run.switch("allreduce")

    def body(place):
        ddp, optimizer, run = alone(place)
        with run:
            run.tuner = Chooser(run)
            recording = pliant.profile(run, steps=9, warmup_steps=0)
            train(ddp, optimizer, place.rank, range(4))
            assert not recording.open
            assert not recording._hooks
        return {e.step for e in recording.timeline().events}

    assert run_world(1, body) == [{0, 1}]  # the third was not over


def test_passes_before_the_last_are_noted_and_a_loss_inside_the_model_is_named():
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return object.__new__(Hidden).of(self.layer(x).square().mean())

    class Hidden:
        def of(self, loss):
            self.loss = loss
            return self

    def body(place):
        model = Loss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with pliant.relax(model, optimizer, pliant.local_sgd(2), group=place.process_group, timeout_s=20) as run:
            recording = pliant.profile(run, steps=1, warmup_steps=0)
            for _ in range(2):
                run.model(torch.ones(1, 4)).loss.backward()
            optimizer.step()
        return [e.name for e in recording.timeline().events if e.kind in ("forward", "backward", "optimize")]

    names = ["forward", "loss and backward", "forward", "loss and backward", "optimize"]
    assert run_world(1, body) == [names]


def test_what_cannot_be_is_refused():
    def body(place):
        _, _, run = alone(place)
        with run, pytest.raises(ValueError, match="steps must be at least 1"):
            pliant.profile(run, steps=0)

    run_world(1, body)
