"""Whole steps of a sharded model on a device: the host looks at nothing there, and what comes out is the CPU's."""

from itertools import chain

import pytest
import torch

import pliant
from device import DEVICE
from engine.device_shards import GROUPS, ShardStepRun, use_shards
from engine.device_steps import CPU, on_device, use_device
from pliant import run_world
from pliant.engine import NonFiniteGradientError, shard_groups

STEPS = 4
PLANS = {
    "exact": pliant.sharded(gradients="allreduce", weights="allreduce"),
    "coded": pliant.sharded(gradients="int4", weights="bytegrad"),
    "differences": pliant.sharded(gradients="onebit", residual="int8", weights="differences(int4)"),
    "rotated": pliant.sharded(gradients="int4", residual="none", weights="bf16"),
    "kept": pliant.sharded(gradients="bytegrad", weights="bytegrad", regather=False),
}
MESH = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
AMONG_REPLICAS = {
    "gradients among replicas": pliant.sharded(gradients="int4", weights="bytegrad", replicas="onebit"),
    "nothing but replicas": pliant.sharded(replicas="bytegrad"),
}


@pytest.fixture(autouse=True)
def device(monkeypatch):
    use_device(monkeypatch)
    use_shards(monkeypatch)


def trained(place, node, device, mesh=None, spoil=lambda step, gradient, name: gradient):
    """Return shards and kept tensors after some steps, the weights that were gathered, and the first error."""
    gathered, said = [], ""
    with on_device(device):
        run = ShardStepRun(place, node, device, mesh=mesh)
        for step in range(STEPS):
            gathered += run.gathered()
            before = [run.back(shard) for shard in run.model.shards.values()]
            gathered += run.gathered()  # backward's
            try:
                run.step(run.backward(step, lambda gradient, name, step=step: spoil(step, gradient, name)))
            except NonFiniteGradientError as error:
                said = str(error)
                assert all(map(torch.equal, before, map(run.back, run.model.shards.values())))
                break
        kept = [own["residual"] for scatter in run.exchanges.scatters if scatter for own in scatter.state.values()]
        tensors = [run.back(x) for x in (*run.model.shards.values(), *gathered, *kept)]
        run.close()
    return tensors, said


def require_equal(found, wanted):
    assert [said for _, said in found] == [said for _, said in wanted]
    for x, y in zip(*(chain(*(tensors for tensors, _ in each)) for each in (found, wanted)), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("differences", "kept") else pytest.mark.extended) for name in PLANS],
)
def test_no_step_of_shards_reads_the_device_and_all_come_to_what_the_cpu_does(name):
    found = run_world(2, lambda place: trained(place, PLANS[name], DEVICE))
    require_equal(found, run_world(2, lambda place: trained(place, PLANS[name], CPU)))


def test_gradients_that_torch_lets_go_of_stay_until_the_device_has_summed_them(monkeypatch):
    seen = []
    monkeypatch.setattr(shard_groups, "used_here", lambda *tensors: seen.extend(len(x) for x in tensors))
    run_world(2, lambda place: trained(place, PLANS["exact"], DEVICE))
    assert seen == [2] * (2 * STEPS * len(GROUPS))  # on two ranks, with rows for both


@pytest.mark.extended
@pytest.mark.parametrize("name", ["gradients among replicas", "nothing but replicas"])
def test_no_step_among_replicas_reads_the_device(name):
    found = run_world(4, lambda place: trained(place, AMONG_REPLICAS[name], DEVICE, MESH))
    require_equal(found, run_world(4, lambda place: trained(place, AMONG_REPLICAS[name], CPU, MESH)))


def spoiled_on_rank_1(place):
    def spoil(step, gradient, name):
        if (step, name, place.rank) == (2, "d", 1):
            gradient[-1] = torch.inf
        return gradient

    return spoil


@pytest.mark.parametrize("name", ["coded", "exact"])
def test_a_bad_gradient_of_shards_is_named_on_all_ranks_before_a_weight_changes(name):
    def body(place, device):
        return trained(place, PLANS[name], device, spoil=spoiled_on_rank_1(place))

    found = run_world(2, lambda place: body(place, DEVICE))
    require_equal(found, run_world(2, lambda place: body(place, CPU)))
    assert all("(rank 1: one, parameter d)" in said for _, said in found), found


def test_a_bad_sum_is_named_where_reduce_scatters_are_torchs_own():
    def body(place, device):
        node = AMONG_REPLICAS["nothing but replicas"]
        return trained(place, node, device, MESH, spoiled_on_rank_1(place))

    found = run_world(4, lambda place: body(place, DEVICE))
    require_equal(found, run_world(4, lambda place: body(place, CPU)))
    assert all("in the sum of several ranks' gradients, that rank" in said for _, said in found), found


@pytest.mark.parametrize("plan", [PLANS["kept"], pliant.sharded(weights="bytegrad", regather=False)])
def test_weights_that_were_changed_behind_a_run_are_named_on_all_ranks_before_the_step(plan):
    def body(place):
        with on_device(DEVICE):
            run = ShardStepRun(place, plan, DEVICE)
            run.gathered()
            if place.rank == 1:
                run.model.shards["b"].add_(1.0)
            run.gathered()
            found = run.backward(0)
            with pytest.raises(RuntimeError, match=r"weights of two \(rank 1\) were changed since they were gathered"):
                run.step(found)
            run.close()

    run_world(2, body)
