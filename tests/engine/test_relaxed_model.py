"""What a person holds is trained as it is under plain DDP, or refused in one sentence."""

import contextlib
import threading
import warnings

import pytest
import torch
import torch.distributed as dist
from held import EVERYTHING, OVER_ALGORITHMS, STEPS, WAYS, Like, in_ddp, plain, plain_compiled, relaxed, simple, small
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import pliant
from pliant.algorithms import plan_of
from pliant.comm.torch_private import backend_of
from pliant.spec import SyncPlan
from waiting import COMPILES_IN_THREADS

OTHER_COMPILED = {"ddp_compiled_in_place", "fabric_compiled", "accelerate compiled"}
"""Ways to what `ddp_compiled` holds as well."""


def marked(way):
    marks = [COMPILES_IN_THREADS] if "compiled" in way else []
    return pytest.param(way, marks=[*marks, pytest.mark.extended] if way in OTHER_COMPILED else marks)


@OVER_ALGORITHMS
@pytest.mark.parametrize("way", [marked(way) for way in WAYS])
def test_every_step_is_exchanged_whatever_is_held(way, names):
    """Under any algorithm: one exchange for each step where a DDP hands gradients over, and ranks that end as one."""
    make, optimizers_of, loop = WAYS[way]
    if way == "GradScaler":
        names = [name for name in names if name != "decoupled_momentum"]  # whose signs it would divide: refused

    def trained(place, name):
        model = make(place)
        optimizers = optimizers_of(name, model)
        with relaxed(place, model, optimizers, name) as run:
            loop(run.model if make in (plain, plain_compiled) else model, optimizers, place.rank, STEPS)
        handed_over = not run.plan.leaves_gradients or make not in (plain, plain_compiled)
        return run.stats(), handed_over, torch.cat([p.detach().flatten() for p in model.parameters()])

    results = pliant.run_world(2, lambda place: {name: trained(place, name) for name in names}, timeout_s=60)
    for name in names:
        (stats, handed_over, one), (_, _, other) = (result[name] for result in results)
        assert (name, stats["steps"]) == (name, STEPS)
        assert (name, stats["exchanges"]) == (name, STEPS if handed_over else 0)
        assert stats["sent_bytes"] > 0, name
        assert torch.equal(one, other), name


@COMPILES_IN_THREADS
@pytest.mark.parametrize("where", ["outside", pytest.param("inside", marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", ["allreduce", "tasc-curved", "small buckets"])
def test_a_compiled_model_is_compiled_no_more_often(name, where):
    """Neither for what looks at inputs and outputs, nor for buckets that are smaller than a compiler accepts."""
    what = EVERYTHING.get(name) or SyncPlan(rules=plan_of(pliant.bytegrad()).rules, bucket_bytes=64)

    def compilations(place, relaxed):
        torch._dynamo.reset()
        counter = CompileCounter()
        model = in_ddp(small(), place)
        (model if where == "outside" else model.module).compile(backend=counter)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pliant.relax(model, optimizer, what, timeout_s=20) if relaxed else contextlib.nullcontext():
            simple(model, [optimizer], 0, 6)
        return counter.frame_count

    def body(place):
        return [compilations(place, relaxed) for relaxed in (False, True)]

    ((plain, ours),) = pliant.run_world(1, body, timeout_s=60)
    assert ours <= plain + (name == "tasc-curved")  # a look at the curvature is a pass of fewer samples


def test_a_world_of_threads_leaves_no_model_in_forward():
    """Torch keeps it for the compiler in one place for all threads: here the first is in and out within the second."""
    first_is_in, both_are_in, first_is_out = (threading.Event() for _ in range(3))

    class First(nn.Linear):
        def forward(self, x):
            first_is_in.set()
            assert both_are_in.wait(20)
            return super().forward(x)

    class Second(nn.Linear):
        def forward(self, x):
            both_are_in.set()
            assert first_is_out.wait(20)
            return super().forward(x)

    def body(place):
        model = in_ddp((First, Second)[place.rank](2, 2), place)
        assert place.rank == 0 or first_is_in.wait(20)
        model(torch.ones(1, 2))
        first_is_out.set()

    pliant.run_world(2, body)
    assert nn.parallel.DistributedDataParallel._get_active_ddp_module() is None


def test_what_relax_cannot_hold_is_refused_in_one_sentence():
    """Before anything communicates: one rank alone asks, and nobody else answers."""

    class NotOne:
        pass

    class Wrapper(torch.optim.Optimizer):
        def __init__(self):
            pass

    def body(place):
        if place.rank:
            return
        module, other = small(), small()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        frozen = small().requires_grad_(False)
        lazy = nn.LazyLinear(3)
        for error, text, model, optimizers in [
            (TypeError, "needs a torch.nn.Module", "a name", optimizer),
            (TypeError, "needs a torch.optim.Optimizer.*NotOne", module, NotOne()),
            (TypeError, "Wrapper, with none inside", module, Wrapper()),
            (TypeError, "Accelerated around a Wrapper, with none inside", module, Like.Accelerated(Wrapper())),
            (TypeError, "empty list", module, []),
            (ValueError, "holds none of the model's parameters", other, optimizer),
            (ValueError, "held by two optimizers", module, [optimizer, torch.optim.Adam(module.parameters())]),
            (ValueError, "no parameter that requires a gradient", frozen, torch.optim.SGD(frozen.parameters())),
            (ValueError, "meta device", small().to("meta"), optimizer),
            (ValueError, "lazy layer", nn.Sequential(lazy, nn.Linear(3, 3)), optimizer),
        ]:
            with pytest.raises(error, match=text):
                pliant.relax(model, optimizers, "allreduce", group=place.process_group, timeout_s=1)

    pliant.run_world(2, body, timeout_s=60)


def test_one_open_run_per_optimizer_module_and_parameter():
    def body(place):
        module, beside = small(), small()
        optimizer = torch.optim.SGD([*module.parameters(), *beside.parameters()], lr=0.1)
        other = torch.optim.SGD(module.parameters(), lr=0.1)
        with pliant.relax(in_ddp(module, place), optimizer, "allreduce", timeout_s=20):
            with pytest.raises(RuntimeError, match="this optimizer already has an open run"):
                pliant.relax(in_ddp(beside, place), [optimizer], "allreduce", timeout_s=20)
            for model in (in_ddp(module, place), in_ddp(nn.Sequential(module), place)):
                with pytest.raises(RuntimeError, match="this model already has an open run"):
                    pliant.relax(model, other, "allreduce", timeout_s=20)
            theirs = small()
            with pliant.relax(in_ddp(theirs, place), torch.optim.SGD(theirs.parameters()), "allreduce", timeout_s=20):
                pass
        with pytest.raises(ValueError, match="hosts"):
            pliant.relax(in_ddp(module, place), optimizer, EVERYTHING["between-hosts"], timeout_s=20)
        with pliant.relax(in_ddp(module, place), other, "allreduce", timeout_s=20) as run:
            simple(run.model, [other], place.rank, 1)

    pliant.run_world(2, body, timeout_s=60)


def test_the_backend_of_a_real_group_is_found():
    assert pliant.run_world(1, lambda place: backend_of(place.process_group, torch.device("cpu"))) == ["gloo"]


def test_models_divided_among_ranks_are_refused():
    """Tensor parallelism, FSDP1, a part under fully_shard: named by the first parameter, or by the wrapper."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        warnings.simplefilter("ignore")  # of a world of one
        mesh = init_device_mesh("cpu", (1,))
        part = small()
        fully_shard(part.first, mesh=mesh)
        parallel = parallelize_module(small(), mesh, {"first": ColwiseParallel()})
        old = FullyShardedDataParallel(small(), device_id=torch.device("cpu"))
        for text, model in [
            ("parts of the model are under fully_shard, but the model itself is not", part),
            (r"'first.weight' is a DTensor, placed as \(Shard\(dim=0\),\) by tensor parallelism", parallel),
            ("FullyShardedDataParallel", old),
        ]:
            with pytest.raises(ValueError, match=text):
                pliant.relax(model, torch.optim.SGD(model.parameters(), lr=0.1), "allreduce", timeout_s=5)
    finally:
        dist.destroy_process_group()
