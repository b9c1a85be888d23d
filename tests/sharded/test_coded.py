"""Gradients and weights in fewer bits: what it does to the weights, that ranks stay equal, and what is sent."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from gpt import adamw, apart, build, loss, train, whole
from torch import nn
from torch.distributed.fsdp import fully_shard
from worlds import run

import pliant
from pliant.codecs import tensor_hash
from tables import default_dtype

pytestmark = [pytest.mark.processes]

ROWS = {
    "bf16": (pliant.sharded(gradients="bf16", weights="bf16"), 2e-2),
    "int8": (pliant.sharded(gradients="bytegrad", weights="bytegrad"), 2e-2),
    "int8 with a residual": (pliant.sharded(gradients="bytegrad", residual="full", weights="allreduce"), 2e-2),
    "int4": (pliant.sharded(gradients="int4", weights="differences(int4)"), 5e-2),
    "int4, residual in 8 bits": (pliant.sharded(gradients="int4", residual="int8", weights="allreduce"), 5e-2),
    "int4, no residual": (pliant.sharded(gradients="int4", residual="none", weights="bytegrad", regather=False), 5e-2),
    "onebit": (pliant.sharded(gradients="onebit", weights="differences(int4)"), 0.1),
    "plain value": (pliant.onebit(), 0.1),
    "plain value, small parameters exact": (
        pliant.partition({pliant.Match(max_numel=200): pliant.allreduce(), "*": pliant.onebit()}),
        0.1,
    ),
}


def gathered_hash(model) -> list[int]:
    """Return what a rank computes with, weight by weight: the same on all ranks that share shards."""
    model.unshard()
    for block in model.blocks:
        block.unshard()
    hashes = [tensor_hash(p) for p in model.parameters()]
    for module in (model, *model.blocks):
        module.reshard()
    return hashes


def coded_rows(width: int, names: tuple[str, ...]) -> dict[str, tuple[float, bool, float]]:
    found = {}
    model = build(width=width)
    plain = train(model, adamw(model))
    for name in names:
        what, _ = ROWS[name]
        model = build(width=width)
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
            got = train(model, optimizer)
            with torch.no_grad():
                loss(model, 0, stream=0)
            all_hashes = [None] * dist.get_world_size()
            dist.all_gather_object(all_hashes, gathered_hash(model))
            owed = run_.stats()["residual_norm"]
        found[name] = (apart(got, plain), all(each == all_hashes[0] for each in all_hashes), owed)
    return found


@pytest.mark.parametrize(
    ("size", "width", "names"),
    [
        (3, 34, ("int4, residual in 8 bits",)),
        *(pytest.param(n, width, (*ROWS,), marks=pytest.mark.extended) for n, width in ((2, 32), (3, 34), (4, 32))),
    ],
)
def test_coded_shards_stay_close_and_all_ranks_compute_with_the_same_weights(size, width, names):
    for found in run(size, coded_rows, width, names):
        for name, (error, equal, owed) in found.items():
            assert 0 < error < ROWS[name][1], (name, error)
            assert equal, name
            residual = "full" if name.startswith("plain") else ROWS[name][0].gradients.residual
            assert (owed > 0) == (residual != "none"), name


def under_default_dtypes() -> bool:
    ends = []
    for dtype in (torch.float32, torch.bfloat16):
        model = build(width=8)
        optimizer = adamw(model)
        what = pliant.sharded(gradients="int4", weights="differences(int4)")
        with default_dtype(dtype), pliant.relax(model, optimizer, what, timeout_s=60):
            ends.append(train(model, optimizer, 2))
    return torch.equal(*ends)


@pytest.mark.extended
def test_another_default_dtype_of_torch_changes_nothing_of_shards():
    assert run(2, under_default_dtypes) == [True, True]


REUSED = {
    "exact": {"weights": "allreduce"},
    "int8": {"weights": "bytegrad"},
    "qsgd": {"weights": "qsgd"},
}


def with_and_without_reuse(names: tuple[str, ...]) -> dict[str, bool]:
    found = {}
    for name in names:
        ends = []
        for regather in (True, False):
            model = build(width=34)
            optimizer = adamw(model)
            with pliant.relax(model, optimizer, pliant.sharded(gradients="int4", regather=regather, **REUSED[name])):
                train(model, optimizer, 3, accumulate=2, clip=1.0)
                model.eval()
                with torch.no_grad():
                    loss(model, 99)
                model.train()
                ends.append(train(model, optimizer, 3, first=3))
        found[name] = torch.equal(*ends)
    return found


@pytest.mark.extended
@pytest.mark.parametrize("names", [(*REUSED,)])
def test_a_gather_that_is_not_repeated_gives_the_same_weights_to_the_bit(names):
    assert all(found == dict.fromkeys(names, True) for found in run(3, with_and_without_reuse, names))


def with_a_scaler() -> list[float]:
    """Return how far training with a loss scale that doubles after each step is from training without one."""
    apart_by = []
    for residual in ("full", "int8"):
        ends = []
        for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", 4.0, growth_interval=1)):
            model = build(width=34)
            optimizer = adamw(model)
            what = pliant.sharded(gradients="int4", residual=residual)
            with pliant.relax(model, optimizer, what, nonfinite="propagate", timeout_s=60):
                for step in range(5):
                    scaler.scale(loss(model, step)).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                ends.append(whole(model))
        apart_by.append(apart(*ends))
    return apart_by


@pytest.mark.extended
def test_what_is_owed_follows_the_loss_scale():
    for full, in_8_bits in run(2, with_a_scaler):
        assert full < 1e-6
        assert in_8_bits < 1e-4


def in_backward_or_after() -> bool:
    """Weights that are stepped in backward are not sent once more to modules whose backward pass is to come."""
    ends = []
    for inside in (False, True):
        model = build(lambda module, **options: module)
        for block in model.blocks:
            for part in (block.qkv, block.up, block.down, block):
                fully_shard(part)
        fully_shard(model)
        optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
        what = pliant.sharded(gradients="allreduce", weights="differences(int4)")
        with pliant.relax(model, optimizers, what, timeout_s=60):
            if inside:
                for parameter, own in zip(model.parameters(), optimizers, strict=True):
                    parameter.register_post_accumulate_grad_hook(lambda _, own=own: (own.step(), own.zero_grad()))
            for step in range(4):
                loss(model, step).backward()
                for own in () if inside else optimizers:
                    own.step()
                    own.zero_grad()
            ends.append(whole(model))
    return torch.equal(*ends)


@pytest.mark.extended
def test_an_optimizer_in_backward_trains_with_the_weights_of_forward():
    assert all(run(2, in_backward_or_after))


def not_stepped() -> float:
    """Return how far the mean of a gradient is from plain FSDP2's, of a parameter that the run's optimizer has not."""
    means = []
    for relaxes in (True, False):
        model = build(width=34)
        optimizer = torch.optim.AdamW([p for name, p in model.named_parameters() if name != "places.weight"])
        with pliant.relax(model, optimizer, pliant.onebit()) if relaxes else contextlib.nullcontext():
            loss(model, 0).backward()
        means.append(model.places.weight.grad.full_tensor())
    return apart(*means)


@pytest.mark.extended
def test_a_parameter_that_the_optimizer_does_not_have_is_averaged_exactly():
    assert all(error < 1e-6 for error in run(2, not_stepped))


def loads_and_writes() -> dict[str, bool]:
    """Weights that are loaded are gathered afresh; weights that are written are noticed, or announced."""
    model, twin = build(), build()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.to_local().mul_(1.5)
    wanted = loss(twin, 0).item()
    optimizer = adamw(model)
    found = {}
    with pliant.relax(model, optimizer, pliant.sharded(weights="allreduce", regather=False)) as run_:
        first = loss(model, 0).item()
        train(model, optimizer, 2)
        start = build().state_dict()
        model.load_state_dict(start)
        shards = [parameter.to_local().detach() for parameter in model.parameters()]
        found["loaded"] = loss(model, 0).item() == first
        model.blocks[0].load_state_dict({name: 0.5 * value for name, value in model.blocks[0].state_dict().items()})
        found["loaded in part"] = loss(model, 0).item() != first
        model.load_state_dict(start)
        loss(model, 0)
        with torch.no_grad():
            for shard in shards:
                shard.mul_(1.5)
        try:
            loss(model, 0)
            found["noticed"] = False
        except RuntimeError as error:
            found["noticed"] = "were changed since they were gathered" in str(error)
        run_.weights_changed()
        found["announced"] = loss(model, 0).item() == wanted
    return found


def test_weights_that_change_behind_a_run_are_not_used_again():
    for found in run(2, loads_and_writes):
        assert found == dict.fromkeys(("loaded", "loaded in part", "noticed", "announced"), True)


def by_size() -> list[str]:
    """A weight of which the last rank holds fewer elements than a plain name spares, and the first one more."""
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(nn.Linear(100, 163), nn.Linear(163, 2)))
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, "onebit", timeout_s=60) as run_:
        for _ in range(2):
            model(torch.randn(4, 100)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        kept = next(iter(run_.state_dict().values()))["shards"]
    return [
        f"{key} {kind}: {value.numel()}"
        for group in kept["groups"].values()
        for key, values in group.items()
        for kind, value in values.items()
        if kind != "of"
    ]


def test_rules_by_size_go_by_whole_parameters_so_that_uneven_shards_have_one_plan():
    own, other = run(2, by_size)
    assert own == other == ["gradients 0 residual: 16300"]
