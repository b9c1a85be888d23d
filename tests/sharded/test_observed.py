"""Times of a sharded model: waits for other ranks are no computing, and copies that FSDP2 makes are."""

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from worlds import run

import pliant
from pliant.comm.fsdp_private import param_groups
from pliant.engine import device_timer
from pliant.spec import Workload, from_json, to_json
from sleepy import Sleepy, SleepySGD, step
from waiting import made_up_clock

pytestmark = [pytest.mark.processes]

COPY_OUT_S, COPY_IN_S = 0.002, 0.001


class Late(dist.Work):
    """A collective that takes a second of whoever waits for it."""

    def __init__(self, work, clock) -> None:
        super().__init__()
        self._work, self._clock = work, clock

    def wait(self, timeout=None):
        self._clock.sleep(1.0)
        return self._work.wait()


def slow_down(clock) -> None:
    """Let each collective of this process take a second, and each copy around one a millisecond or two."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives, _fsdp_param_group as groups

    gather, scatter, all_reduce = (
        collectives.DefaultAllGather.__call__,
        collectives.DefaultReduceScatter.__call__,
        dist.all_reduce,
    )

    def late_gather(*given, **named):
        work = gather(*given, **named)
        return clock.sleep(1.0) if work is None else Late(work, clock)

    def after(seconds, call):
        return lambda *given, **named: (clock.sleep(seconds), call(*given, **named))[1]

    collectives.DefaultAllGather.__call__ = late_gather
    collectives.DefaultReduceScatter.__call__ = after(1.0, scatter)
    dist.all_reduce = after(1.0, all_reduce)
    groups.foreach_all_gather_copy_out = after(COPY_OUT_S, groups.foreach_all_gather_copy_out)
    collectives.foreach_reduce_scatter_copy_in = after(COPY_IN_S, collectives.foreach_reduce_scatter_copy_in)


def observed() -> dict[str, tuple[str, float, bool]]:
    """Return what is seen of each kind of model in JSON, its whole step, and whether all is as it was before."""
    clock = made_up_clock()
    device_timer.time = clock
    slow_down(clock)
    found = {}
    for kind in ("fully_shard", "asynchronous", "replicate"):
        model = Sleepy(clock)
        for module in (*model.layers, model):
            (replicate if kind == "replicate" else fully_shard)(module, mesh=init_device_mesh("cpu", (2,)))
        for layer in model.layers:
            layer._set_unshard_async_op(kind == "asynchronous")
        optimizer = SleepySGD(model.parameters(), lr=0.01)
        optimizer.clock = clock
        before = [dict(vars(group.raw)) for group in param_groups(model)]
        with pliant.observe(model, optimizer, steps=2, warmup_steps=1, gradient_steps=0) as seen:
            while not seen.done:
                step(model, optimizer, torch.randn(2, 4, requires_grad=True))
        after = [vars(group.raw) for group in param_groups(model)]
        places = ("_all_gather_comm", "_reduce_scatter_comm", "unshard", "wait_for_unshard", "post_backward")
        same = all(b.get(name) is a.get(name) for b, a in zip(before, after, strict=True) for name in places)
        found[kind] = to_json(seen.workload()), seen.step_s, same
    return found


def times_of(copy_out_s: float, copy_in_s: float) -> Mapping[str, float]:
    """Return when gradients are ready: a layer's copy out is before its backward, its copy in behind it."""
    slept_s = (0.0, 0.05, 0.09, 0.12)
    return {f"layers.{3 - k}.weight": s + k * (copy_out_s + copy_in_s) for k, s in enumerate(slept_s)}


def test_waits_are_no_computing_and_copies_are():
    for found in run(2, observed):
        for kind, (text, step_s, same) in found.items():
            workload = from_json(Workload, text)
            copies = (0.0, 0.0) if kind == "replicate" else (COPY_OUT_S, COPY_IN_S)
            ready_s = times_of(*copies)
            assert {t.name: t.ready_s for t in workload.tensors} == pytest.approx(ready_s), kind
            assert workload.forward_s == pytest.approx(4 * (0.01 + copies[0])), kind
            assert workload.backward_s == pytest.approx(max(ready_s.values())), kind
            assert workload.step_s == pytest.approx(0.003), kind
            assert workload.num_shards == (1 if kind == "replicate" else 2), kind
            assert step_s > 4, kind  # all of it, with four reductions at least
            assert same, kind
