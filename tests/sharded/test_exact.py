"""The exact plan equals plain FSDP2, in every way of using it."""

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpt import adamw, apart, build, loss, train, whole
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from worlds import run

import pliant
from pliant.comm.fsdp_private import ParamGroup

pytestmark = [pytest.mark.processes]

BF16 = torch.bfloat16


def by_columns(parameter: nn.Parameter) -> Shard:
    return Shard(1) if parameter.ndim == 2 else Shard(0)


def relaxed_and_plain(
    training: dict[str, Any], options: dict[str, Any], plain_options: dict[str, Any] | None = None
) -> float:
    ends = []
    for relaxes in (False, True):
        model = build(**(options if relaxes or plain_options is None else plain_options))
        optimizer = adamw(model)
        run = pliant.relax(model, optimizer, "allreduce", timeout_s=60) if relaxes else None
        ends.append(train(model, optimizer, **training))
        if run is not None:
            run.close()
    return apart(*ends)


IN_BF16, ADDED_IN_FLOAT32 = (
    {"mp_policy": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=dtype)} for dtype in (BF16, torch.float32)
)
ROWS: dict[str, tuple[dict[str, Any], ...]] = {
    "plain": ({}, {}),
    "uneven": ({}, {"width": 34}),
    "accumulation": ({"accumulate": 3}, {}),
    "accumulation without exchange": ({"accumulate": 2, "unsynchronized": True}, {}),
    "clipping": ({"clip": 0.5}, {}),
    "kept after forward": ({}, {"reshard_after_forward": False}),
    "bf16 weights": ({}, ADDED_IN_FLOAT32),
    # Gradients travel in 16 bits, but sums are formed in float32, where torch rounds after each addition.
    "bf16 weights and gradients": ({}, IN_BF16, ADDED_IN_FLOAT32),
    "checkpointed": ({}, {"wrap": checkpoint_wrapper}),
    "offloaded": ({}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}),
    "uneven, accumulated and clipped": ({"accumulate": 2, "clip": 0.5}, {"width": 34}),
}


def compiled(how: str) -> float:
    ends = []
    for relaxes in (False, True):
        model = build()
        if how == "wrapped":
            for k, block in enumerate(model.blocks):
                model.blocks[k] = torch.compile(block, backend="eager")
        for module in {"whole": [model], "blocks": model.blocks}.get(how, []):
            module.compile(backend="eager")
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, "allreduce") if relaxes else contextlib.nullcontext() as run_:
            ends.append(train(model, optimizer, 10))
            for own in run_.state_dict().values() if relaxes else ():
                assert not any("_orig_mod" in name for name in own["shards"]["cuts"])
                assert not any("_orig_mod" in group.name for group in run_._relaxed.sharded.groups)
    return apart(*ends)


def in_backward() -> float:
    """Each parameter has an optimizer that steps as soon as its gradient is reduced."""
    ends = []
    for relaxes in (False, True):
        model = build()
        optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
        run = pliant.relax(model, optimizers, "allreduce") if relaxes else None
        for parameter, optimizer in zip(model.parameters(), optimizers, strict=True):
            parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: (o.step(), o.zero_grad()))
        for step in range(10):
            loss(model, step).backward()
        ends.append(whole(model))
        if run is not None:
            assert run.steps == 10
            run.close()
    return apart(*ends)


def ignored() -> float:
    """Parameters that fully_shard leaves alone are left alone here too, and each rank's own."""
    ends = []
    for relaxes in (False, True):
        model = build(lambda module, **options: module)
        left = {*model.norm.parameters()}
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model, ignored_params=left)
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, "allreduce") if relaxes else contextlib.nullcontext():
            ends.append(train(model, optimizer, 10))
    return apart(*ends)


def waits() -> dict[str, set[bool]]:
    """Return whether reduce-scatters have waited, in ways of training in which torch reads their result, or not."""
    found: dict[str, set[bool]] = {}
    asked = ParamGroup.reads_at_once
    for name, training in {"plain": {}, "clipping": {"clip": 0.5}, "accumulation": {"accumulate": 2}}.items():
        answers = found[name] = set()
        ParamGroup.reads_at_once = lambda self, of, answers=answers: answers.add(asked(self, of)) or asked(self, of)
        model = build()
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, "allreduce"):
            train(model, optimizer, 2, **training)
    ParamGroup.reads_at_once = asked
    return found


def test_a_reduce_scatter_waits_only_where_torch_reads_its_result_at_once():
    assert run(2, waits)[0] == {"plain": {False}, "clipping": {False}, "accumulation": {False, True}}


def tensor_parallel() -> float:
    ends = []
    for relaxes in (False, True):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3)])
        for block in model:
            parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, "allreduce") if relaxes else contextlib.nullcontext():
            for step in range(10):
                generator = torch.Generator().manual_seed(step * 10 + mesh["data"].get_local_rank())
                model(torch.randn(8, 16, generator=generator)).square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        ends.append(whole(model))
    return apart(*ends)


SOME = ("uneven, accumulated and clipped", "bf16 weights and gradients")
"""Rows of the first tier."""


def some_rows() -> dict[str, float]:
    return {name: relaxed_and_plain(*ROWS[name]) for name in SOME}


def rows() -> dict[str, float]:
    errors = {name: relaxed_and_plain(*row) for name, row in ROWS.items()}
    errors |= {"optimizer in backward": in_backward(), "ignored": ignored()}
    errors |= {f"compiled {how}": compiled(how) for how in ("blocks", "whole", "wrapped")}
    if dist.get_world_size() % 2 == 0:  # columns must divide evenly
        errors["by columns"] = relaxed_and_plain({}, {"shard_placement_fn": by_columns})
    if dist.get_world_size() == 4:
        errors |= {
            "another mesh in backward": relaxed_and_plain({}, {"reshard_after_forward": 2}),
            "tensor parallel": tensor_parallel(),
        }
    return errors


@pytest.mark.parametrize(
    ("size", "function"), [(3, some_rows), *(pytest.param(n, rows, marks=pytest.mark.extended) for n in (2, 3, 4))]
)
def test_the_exact_plan_equals_plain_fsdp2(size, function):
    for name, error in run(size, function)[0].items():
        assert error <= 1e-6, (name, error)
