"""What is around a sharded run: resume, NaN, agreement, lost ranks, switches, memory and refusals."""

import contextlib
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import adamw, apart, build, loss, train
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from worlds import run

import pliant
from pliant.comm.fsdp_private import param_groups
from pliant.engine.comm_thread import CommThread
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.sharded_hooks import ReduceScatterHook
from pliant.spec import Rule, SyncPlan

pytestmark = [pytest.mark.processes]

RESUMED = {
    "int4": (pliant.sharded(gradients="int4", weights="differences(int4)"), False),
    "8 bits": (pliant.sharded(gradients="onebit", residual="int8", weights="bytegrad", regather=False), False),
    "no residual": (pliant.sharded(gradients="int4", residual="none", weights="qsgd"), False),
    "onebit among replicas": (pliant.onebit(), True),
    "diloco among replicas": (pliant.diloco(4), True),
    "everything": (pliant.sharded(gradients="int4", weights="differences(int4)", replicas="topk(0.1)"), True),
}


def model_of(on_replicas: bool):
    if not on_replicas:
        return build(width=34)
    return build(width=34, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")))


def own_weights(model) -> torch.Tensor:
    return torch.cat([p.to_local().detach().flatten() for p in model.parameters()])


def resumes(names: list[str], folder: str) -> dict[str, bool]:
    found = {}
    for name in names:
        what, on_replicas = RESUMED[name]
        model = model_of(on_replicas)
        optimizer = adamw(model)
        path = f"{folder}/{name}"
        with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
            train(model, optimizer, 3)
            own, state = get_state_dict(model, optimizer)
            dcp.save({"model": own, "optimizer": state, "pliant": run_.state_dict()}, checkpoint_id=path)
            train(model, optimizer, 3, first=3)
            wanted = own_weights(model).clone()
        model = model_of(on_replicas)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().add_(1.0)
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
            own, state = get_state_dict(model, optimizer)
            both = {"model": own, "optimizer": state}
            dcp.load(both, checkpoint_id=path)
            set_state_dict(model, optimizer, model_state_dict=both["model"], optim_state_dict=both["optimizer"])
            kept = {"pliant": run_.state_dict()}
            dcp.load(kept, checkpoint_id=path)
            run_.load_state_dict(kept["pliant"])
            train(model, optimizer, 3, first=3)
            found[name] = torch.equal(own_weights(model), wanted)
    return found


ALONE, AMONG_REPLICAS = (
    [name for name, (_, on_replicas) in RESUMED.items() if on_replicas == on] for on in (False, True)
)


@pytest.mark.extended
@pytest.mark.parametrize(("size", "names"), [(3, ALONE[:1]), (3, ALONE[1:]), (4, AMONG_REPLICAS)])
def test_a_run_goes_on_to_the_bit_through_distributed_checkpoint(size, names, tmp_path):
    for found in run(size, resumes, names, str(tmp_path)):
        assert found == dict.fromkeys(names, True)


def nan_told(kind: str) -> list[str]:
    """Rank 1 has a NaN in one parameter's gradient; all raise, and go on afterwards."""
    model = model_of(kind == "replicas")
    optimizer = adamw(model)
    what = {
        "exact": "allreduce",
        "coded": pliant.int4(),
        "replicas": pliant.sharded(gradients="int4", replicas="onebit"),
    }[kind]
    told = []
    with pliant.relax(model, optimizer, what, timeout_s=60):
        train(model, optimizer, 2)
        before = own_weights(model).clone()
        factor = float("nan") if dist.get_rank() == 1 else 1.0
        spoils = model.places.register_forward_hook(lambda *a: a[-1].register_hook(lambda g: g * factor) and None)
        try:
            loss(model, 5).backward()
        except pliant.NonFiniteGradientError as error:
            told.append(str(error))
        spoils.remove()
        optimizer.zero_grad()
        told.append(str(torch.equal(own_weights(model), before)))
        train(model, optimizer, 2, first=2)
        told.append(str(bool(own_weights(model).isfinite().all())))
    return told


@pytest.mark.parametrize(
    "kind", ["coded", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("exact", "replicas"))]
)
def test_a_gradient_that_is_not_finite_is_named_by_rank_group_and_parameter_on_all_ranks(kind):
    for told, unchanged, finite in run(4 if kind == "replicas" else 2, nan_told, kind):
        assert "(rank 1: the model itself, parameter places.weight)" in told, told
        assert (unchanged, finite) == ("True", "True")


def switched() -> dict[str, Any]:
    model = build(width=34)
    plain = train(model, adamw(model), 8)
    model = build(width=34)
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, "allreduce", timeout_s=60) as run_:
        for step, what in enumerate(["allreduce", "onebit", pliant.sharded(gradients="int4", weights="bytegrad")]):
            run_.switch(what)
            train(model, optimizer, 2, first=2 * step)
        run_.switch(pliant.sharded())  # torch's own exchanges, which pay nothing
        train(model, optimizer, 1, first=6)
        lost = without_debts_refused(run_)
        run_.switch("allreduce")
        owed = run_.stats()["residual_norm"]
        got = train(model, optimizer, 1, first=7)
        paid = run_.stats()["residual_norm"]
    return {"error": apart(got, plain), "owed": owed, "paid": paid, "lost": lost}


def without_debts_refused(run_) -> str:
    """Load a state that lacks what is owed, as one that was loaded key by key, and then the whole of it."""
    whole, lacking = run_.state_dict(), run_.state_dict()
    for own in lacking.values():
        for kept in own["shards"]["groups"].values():
            del kept["owed"]
    try:
        run_.load_state_dict(lacking)
    except ValueError as error:
        run_.load_state_dict(whole)
        return str(error)
    return "not refused"


def test_a_switch_pays_what_the_old_plan_owes():
    for found in run(2, switched):
        assert found["error"] < 0.1
        assert found["owed"] > 0
        assert "the state holds 0 of 3 gradients that a switch of plans had left" in found["lost"]
        assert found["paid"] == 0


def broken_off() -> list[float]:
    """Return how far a run is from plain FSDP2 after a pass of which forward or backward raises on all ranks."""
    fails = {"forward": lambda *_: 1 / 0, "backward": lambda *a: a[-1].register_hook(lambda _: 1 / 0) and None}
    errors = []
    for fail in fails.values():
        ends = []
        for relaxes in (False, True):
            model = build(width=34)
            optimizer = adamw(model)
            with pliant.relax(model, optimizer, "allreduce") if relaxes else contextlib.nullcontext():
                train(model, optimizer, 1)
                hook = model.blocks[0].register_forward_hook(fail)
                with contextlib.suppress(ZeroDivisionError):
                    loss(model, 50).backward()
                hook.remove()
                model.reset_iter_state()
                optimizer.zero_grad()
                ends.append(train(model, optimizer, 2, first=1))
        errors.append(apart(*ends))
    return errors


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="torch 2.13 and later forget a pass")
def test_a_pass_that_is_broken_off_is_forgotten_as_torch_does_it():
    for errors in run(2, broken_off):
        assert max(errors) <= 1e-6, errors


def test_memory_is_of_the_right_type_after_a_pass_that_was_broken_off():
    group = SimpleNamespace(
        raw=SimpleNamespace(_orig_dtype=torch.bfloat16), shard_group=SimpleNamespace(size=lambda: 2)
    )
    hook = ReduceScatterHook(group, None, SimpleNamespace(wide=True))
    asked = [hook.allocate((n,), dtype=torch.float16, device=torch.device("cpu")).dtype for n in (8, 8, 4, 8, 4)]
    assert asked == [torch.float32, torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]


def offloaded() -> nn.Module:
    model = build(offload_policy=CPUOffloadPolicy(pin_memory=False))
    param_groups(model)[0].raw.device = torch.device("cuda")  # as if it computed there
    return model


def replicated() -> nn.Module:
    return build(replicate, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)))


def refused() -> dict[str, str]:
    def told(make, what="allreduce", **options) -> str:
        model = make()
        try:
            pliant.relax(model, adamw(model), what, timeout_s=20, **options)
        except (ValueError, RuntimeError) as error:
            return str(error)
        return "not refused"

    def with_factor():
        model = build()
        model.set_gradient_divide_factor(3.0)
        return model

    def with_hook():
        model = build()
        model.blocks[0].set_all_reduce_hook(lambda x: None)
        return model

    def mixed_meshes():
        model = build(shard=lambda module, **options: module)
        alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
        fully_shard(model.blocks[0], mesh=alone["b"])
        return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))

    def mixed_dtypes():
        model = build(shard=lambda module, **options: module)
        model.blocks[0].up.to(torch.bfloat16).requires_grad_(False)
        return fully_shard(model)

    half, double = ({"mp_policy": MixedPrecisionPolicy(reduce_dtype=d)} for d in (torch.float16, torch.float64))
    tight = pliant.sharded(gradients="int4", weights="differences(int4)", limit_bytes=1000)
    return {
        "factor": told(with_factor),
        "hook": told(with_hook),
        "meshes": told(mixed_meshes),
        "dtypes": told(mixed_dtypes),
        "fp16": told(lambda: build(**half)),
        "fp64": told(lambda: build(**double)),
        "offloaded": told(offloaded),
        "memory": told(build, tight),
        "no codec": told(build, "powersgd"),
        "between steps": told(build, "diloco(4)"),
        "no replicas": told(build, pliant.sharded(replicas="onebit")),
        "no shards": told(replicated, pliant.sharded(weights="differences(int4)", replicas="onebit")),
        "order": told(build, SyncPlan(rules=(Rule(exchange=pliant.int4()),), order="at_end")),
        "elastic": told(build, elastic=pliant.Elastic()),
        "plans": told(build, "allreduce" if dist.get_rank() else "bytegrad"),
        "whole": told(lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), pliant.sharded(gradients="int4")),
        **refused_while_open(),
    }


def refused_while_open() -> dict[str, str]:
    model = build()
    optimizer, found = adamw(model), {}
    with pliant.relax(model, optimizer, pliant.int4(), timeout_s=20) as run_:
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, run_.state_dict())
        asks = {
            "resize": lambda: pliant.resize(states, 1),
            "hosts": lambda: run_.switch(pliant.sharded(replicas="onebit")),
            "limit": lambda: run_.switch(pliant.sharded(gradients="int4", residual="full", limit_bytes=1000)),
            "again": lambda: pliant.relax(model, adamw(model), pliant.int4(), timeout_s=20),
        }
        for name, ask in asks.items():
            try:
                ask()
            except ValueError as error:
                found[name] = str(error)
        train(model, optimizer, 1)  # it goes on under the plan that it had
        found["plan"] = str(run_.plan.rules[0].exchange)
        found["ahead"] = gathered_ahead(*run_._executor.of(ShardExchanges))
    return found


def gathered_ahead(shards: ShardExchanges) -> str:
    """Hand back with a gather under way, which goes on once it is waited for; say whether it came to its end."""
    (thread,), waited, ended = shards.gathering, threading.Event(), []
    thread.submit(lambda: ended.append(waited.wait()))
    thread.drain = lambda: waited.set() or CommThread.drain(thread)
    shards.hand_back(1)
    waited.set()
    return f"{len(ended)} ended"


def test_what_is_not_supported_is_refused_in_one_sentence_on_all_ranks():
    sentences = {
        "factor": "has a divide factor of its own",
        "hook": "'blocks.0' has an all-reduce hook .* Pliant needs that place",
        "meshes": "are divided among different ranks",
        "dtypes": "gathers weights of several types",
        "fp16": "reduces gradients in torch.float16",
        "fp64": "reduces gradients in torch.float64, of which torch scales sums in two steps",
        "offloaded": "computes on cuda and keeps its shards on the host",
        "memory": "but limit_bytes is 1000; use residual='int8'",
        "no codec": "gradients of a sharded model travel in one codec, but LowRank is more than that",
        "between steps": "travel in one codec, but LocalSteps",
        "no replicas": "no two hold the same; leave replicas out",
        "no shards": r"under replicate\(\) parameters are whole on every rank; say what ranks do by replicas=",
        "order": "hands its gradients over when they are complete; use order='ready'",
        "elastic": "an elastic run goes on with any of its ranks",
        "plans": "give all ranks the same name",
        "whole": "the model's are whole on every rank",
        "resize": "but a model that is not divided exchanges neither",
        "hosts": "no two hold the same",
        "limit": "but limit_bytes is 1000; use residual='int8'",
        "ahead": "1 ended",
        "plan": r"gradients=ReduceScatter\(codec=int4, residual='full'\)",
        "again": "this model already has an open run",
    }
    for found in run(2, refused):
        for name, sentence in sentences.items():
            assert re.search(sentence, found[name]), (name, found[name])
