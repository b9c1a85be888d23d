"""Ratios that follow the network, in real runs on ranks that are threads."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant
from pliant.algorithms import executor_for
from pliant.engine.ratio_controller import RatioController, controllers_for, require_timed_targets
from pliant.engine.tracer import Tracer
from pliant.spec import Match, Rule, SyncPlan
from waiting import dawdle

NUMEL = 64 * 64


def trained(place, what, steps, *, body=None, hosts=None, model=None):
    """Train a small model; return what `body(run)` says after each step, and the run's last state."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(model or nn.Linear(64, 64, bias=False), process_group=place.process_group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(place.rank)
    said = []
    with pliant.relax(ddp, optimizer, what, hosts=hosts, timeout_s=20) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randn(8, 64, generator=generator)
            (ddp(x) - x).square().mean().backward()
            optimizer.step()
            run._comm_thread.drain()
            said.append(body(run) if body else run.stats()["ratio"])
    return said


def test_bytes_of_a_step_are_held_alike_on_all_ranks():
    target = 3000.0
    what = pliant.with_target(pliant.topk(0.01), bytes_per_step=target)

    def body(place):
        return trained(place, what, 41, body=lambda run: (run.stats()["ratio"], run.stats()["sent_bytes"]))

    one, other = pliant.run_world(2, body)
    assert [ratio for ratio, _ in one] == [ratio for ratio, _ in other]
    assert one[2][0] == 0, "decided before there was anything to see"
    decision = 9 * 8  # an all-reduce of nine numbers among two ranks sends one tensor
    sent = one[40][1] - one[20][1] - 5 * decision
    assert sent / 20 == pytest.approx(target, rel=0.05)


@pytest.mark.extended
def test_a_link_that_waits_lowers_the_ratio():
    """Every rank's network is made slow by hand: what it waits grows with what it sends."""
    what = pliant.with_target(pliant.topk(0.02), exposed_s=0.05, floor=1e-3)  # so few that no knee shows
    rate = {"bytes_per_s": 4e5}

    def body(place):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Linear(128, 128, bias=False), process_group=place.process_group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with pliant.relax(ddp, optimizer, what, timeout_s=20) as run:
            comm = run._comm._comm
            gather, exchange = comm.all_gather, comm.exchange

            def slowed(work, num_bytes):
                def wait(begun=work.wait):
                    begun()
                    dawdle(num_bytes / rate["bytes_per_s"])

                return SimpleNamespace(wait=wait)

            comm.all_gather = lambda out, x: slowed(gather(out, x), x.nbytes)
            comm.exchange = lambda sends, receives, **more: slowed(  # carries short gathers
                exchange(sends, receives, **more), sum(x.nbytes for _, x in sends)
            )
            ratios = []
            for _ in range(60):
                optimizer.zero_grad()
                x = torch.randn(4, 128)
                (ddp(x) - x).square().mean().backward()
                optimizer.step()
                run._comm_thread.drain()
                ratios.append(run.stats()["ratio"])
                if len(ratios) == 30 and place.rank == 0:
                    rate["bytes_per_s"] = 3e4
        return ratios

    one, other = pliant.run_world(2, body)
    assert one[-1] == other[-1]
    assert 0 < one[-1] < one[29] / 3


def test_hosts_have_a_ratio_between_them_and_a_fit_inside():
    what = pliant.between_hosts(pliant.with_target(pliant.topk(0.05), bytes_per_step=2000))
    assert executor_for(what).node == what

    def body(place):
        def look(run):
            [controller] = run._executor.of(RatioController)
            return run.stats()["ratio"], controller.inside.beta + controller.inside.alpha

        return trained(place, what, 16, body=look, hosts=[[0, 1], [2, 3]])

    results = pliant.run_world(4, body)
    assert len({tuple(ratio for ratio, _ in said) for said in results}) == 1
    assert all(said[-1][0] > 0 and said[-1][1] > 0 for said in results)


def test_every_few_steps_and_several_buckets_share_one_ratio():
    what = pliant.every(2, pliant.with_target(pliant.topk(0.02), bytes_per_step=4000))
    plan = SyncPlan(rules=(Rule(exchange=what),), bucket_bytes=4096)

    def body(place):
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
        return trained(place, plan, 24, model=model)

    one, other = pliant.run_world(2, body)
    assert one == other
    assert one[-1] > 0.02


def test_it_is_kept_by_a_switch_of_buckets_and_forgotten_with_its_target():
    what = pliant.with_target(pliant.topk(0.01), bytes_per_step=3000)

    def body(place):
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Linear(64, 64, bias=False), process_group=place.process_group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)

        def steps(num):
            for _ in range(num):
                optimizer.zero_grad()
                ddp(torch.randn(2, 64)).square().mean().backward()
                optimizer.step()

        with pliant.relax(ddp, optimizer, what, timeout_s=20) as run:
            steps(12)
            run._comm_thread.drain()
            before = run.stats()["ratio"]
            run.switch(SyncPlan(rules=(Rule(exchange=what),), bucket_bytes=8192))
            kept = run.stats()["ratio"]
            run.switch(pliant.topk(0.01))
            steps(5)
            return before, kept, run.stats()["ratio"]

    for before, kept, after in pliant.run_world(2, body):
        assert before == kept > 0
        assert after == 0


@pytest.mark.parametrize(("value_bits", "most"), [(4, 0.140625), (16, 0.4), (32, 0.4)])
def test_no_ratio_is_above_the_one_that_sends_everything(value_bits, most):
    what = pliant.with_target(pliant.tasc(value_bits=value_bits), exposed_s=0.1, ceiling=0.4)
    assert what.target.ceiling == most


def test_what_cannot_be_is_refused_with_both_sides_named():
    with pytest.raises(ValueError, match="given 0 targets"):
        pliant.with_target(pliant.topk())
    with pytest.raises(ValueError, match="given 2 targets"):
        pliant.with_target(pliant.topk(), exposed_s=0.1, bytes_per_s=3)
    with pytest.raises(ValueError, match="invalid Target: value must be above 0, got -1"):
        pliant.with_target(pliant.topk(), exposed_s=-1)
    with pytest.raises(ValueError, match=r"floor must be at most the ceiling of 0\.01, got 0\.1"):
        pliant.with_target(pliant.topk(), exposed_s=1, floor=0.1, ceiling=0.01)
    with pytest.raises(ValueError, match="effort must be above 0 and at most 1, got 2"):
        pliant.with_target(pliant.topk(), exposed_s=1, effort=2)
    one, other = (pliant.with_target(pliant.topk(), exposed_s=s) for s in (0.1, 0.2))
    with pytest.raises(ValueError, match="two rules have different targets"):
        SyncPlan(rules=(Rule(match=Match(pattern="a"), exchange=one), Rule(exchange=other)))
    assert "target=Target(of='exposed_s', value=0.1)" in str(one)


def test_a_time_cannot_be_held_on_cuda_yet_and_one_rank_has_nothing_to_hold():
    node = pliant.with_target(pliant.topk(), exposed_s=0.1)

    def body(place):
        from pliant.comm.recorded import RecordedComm

        tracer = Tracer(torch.device("cpu"), RecordedComm(place.comm))
        if place.size == 1:
            assert controllers_for({"w": node}, {}, tracer, None, [], begins=True) == []
        else:
            assert controllers_for({"w": node}, {}, tracer, None, [], begins=True)
        require_timed_targets([node], tracer)
        tracer.device = torch.device("cuda")
        refuses = pytest.raises(ValueError, match="hold bytes_per_step or bytes_per_s instead")
        with refuses if place.size > 1 else contextlib.nullcontext():
            require_timed_targets([node], tracer)

    for size in (1, 2):
        pliant.run_world(size, body)
