"""Checkpoints of sharded runs: to the bit on the same mesh, conserved on another, and the mean of replicas."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gpt import adamw, apart, build, loss, train, whole
from torch.distributed.device_mesh import init_device_mesh
from worlds import run

import pliant

pytestmark = [pytest.mark.processes]

KEEPING = {
    "int4": (pliant.sharded(gradients="int4", weights="differences(int4)"), ()),
    "int8 residual": (pliant.sharded(gradients="onebit", residual="int8", weights="allreduce", regather=False), ()),
    "exact": (pliant.allreduce(), ()),
    "replicas": (pliant.sharded(gradients="int4", weights="differences(int4)", replicas="topk(0.1)"), (2, 2)),
    "diloco": (pliant.diloco(4), (2, 2)),
    "local": (pliant.local_sgd(4), (2, 1)),
}
FRESH = 34
"""Width at which no extent divides evenly among three ranks."""


def model_of(mesh: tuple[int, ...]):
    if not mesh:
        return build(width=FRESH)
    return build(width=FRESH, mesh=init_device_mesh("cpu", mesh, mesh_dim_names=("replica", "shard")))


def spoiled(mesh: tuple[int, ...]):
    """Return a model that is nowhere near the saved one."""
    model = model_of(mesh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().add_(1.0)
    return model


def own_weights(model) -> torch.Tensor:
    return torch.cat([p.to_local().detach().flatten() for p in model.parameters()])


def saves_and_resumes(names: tuple[str, ...], folder: str) -> dict[str, bool]:
    found = {}
    for name in names:
        what, mesh = KEEPING[name]
        model = model_of(mesh)
        optimizer = adamw(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
            train(model, optimizer, 3)
            schedule.step()
            with torch.no_grad():
                loss(model, 99)  # so that weights are gathered already
            run_.save(f"{folder}/{name}", scheduler=schedule)
            train(model, optimizer, 3, first=3)
            wanted = own_weights(model).clone()
        model = spoiled(mesh)
        optimizer = adamw(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        with pliant.load_run(f"{folder}/{name}", model, optimizer, schedule, timeout_s=60) as run_:
            assert run_.steps == 3
            run_.load_state_dict(run_.state_dict())  # as if it were saved once more at once
            train(model, optimizer, 3, first=3)
            found[name] = torch.equal(own_weights(model), wanted)
    return found


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ("int4",)),
        pytest.param(3, ("int4", "int8 residual", "exact"), marks=pytest.mark.extended),
        pytest.param(4, ("replicas", "diloco"), marks=pytest.mark.extended),
    ],
)
def test_a_saved_run_goes_on_to_the_bit(size, names, tmp_path):
    for found in run(size, saves_and_resumes, names, str(tmp_path)):
        assert found == dict.fromkeys(names, True)


def before_a_step(folder: str) -> bool:
    """A run whose replicas will differ is saved before its first step; one parameter is frozen."""
    ends = []
    for begins in (True, False):
        model = model_of((2, 1)) if begins else spoiled((2, 1))
        model.places.weight.requires_grad_(False)
        optimizer = adamw(model)
        relaxes = (
            pliant.relax(model, optimizer, "local_sgd(2)") if begins else pliant.load_run(folder, model, optimizer)
        )
        with relaxes as run_:
            if begins:
                run_.save(folder)
            train(model, optimizer, 3)
            ends.append(own_weights(model).clone())
    return torch.equal(*ends)


@pytest.mark.extended
def test_a_run_of_replicas_that_differ_is_saved_before_its_first_step(tmp_path):
    assert run(2, before_a_step, str(tmp_path)) == [True, True]


def owed_of(run_, model) -> torch.Tensor:
    """Return the mean over ranks of what each owes, parameter by parameter as a whole, (numel,). Collective."""
    (shards,) = (part for part in run_._executor.parts if part.key == "shards")
    total = []
    for scatter, (_, columns) in zip(shards.scatters, shards.findings.groups, strict=True):
        rows = scatter.take_debts()
        dist.all_reduce(rows)
        for column in columns:
            parts = [rows[r, column.offset : column.offset + n] for r, n in enumerate(column.valid)]
            total.append(torch.cat(parts).double() / dist.get_world_size())
    return torch.cat(total)


def momenta_of(model, optimizer):
    momenta = [optimizer.state[p]["exp_avg"].full_tensor().flatten() for p in model.parameters()]
    return torch.cat(momenta).numpy()  # tensors do not go through pipes


def saves(what, mesh: tuple[int, ...], folder: str):
    model = model_of(mesh)
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
        train(model, optimizer, 3)
        run_.save(folder)
        return owed_of(run_, model).numpy(), whole(model).numpy(), momenta_of(model, optimizer)


def loads(mesh: tuple[int, ...], folder: str):
    model = spoiled(mesh)
    optimizer = adamw(model)
    with pliant.load_run(folder, model, optimizer, resize=True, timeout_s=60) as run_:
        owed, weights = owed_of(run_, model), whole(model)
        momenta, step = momenta_of(model, optimizer), run_.steps
        train(model, optimizer, 1, first=3)
    return owed.numpy(), weights.numpy(), momenta, step, bool(own_weights(model).isfinite().all())


RESIZED = [
    ("int4", 2, (), 3, ()),
    ("int4", 3, (), 2, ()),
    ("int8 residual", 3, (), 4, ()),
    ("int4", 4, (), 2, ()),
    ("replicas", 4, (2, 2), 2, (1, 2)),
]


@pytest.mark.parametrize(
    ("name", "old", "old_mesh", "new", "new_mesh"),
    [RESIZED[0], *(pytest.param(*row, marks=pytest.mark.extended) for row in RESIZED[1:])],
)
def test_what_is_owed_is_conserved_on_another_number_of_ranks(name, old, old_mesh, new, new_mesh, tmp_path):
    what, _ = KEEPING[name]
    folder = str(tmp_path / "run")
    owed, weights, before = run(old, saves, what, old_mesh, folder)[0]
    found, now, momenta, step, finite = run(new, loads, new_mesh, folder)[0]
    assert step == 3
    assert np.array_equal(now, weights)
    assert np.array_equal(momenta, before)
    assert finite
    tolerance = 1e-6 if name != "int8 residual" else 0.03  # which is rounded to 8 bits once more
    assert np.linalg.norm(found - owed) <= tolerance * np.linalg.norm(owed)
    assert np.linalg.norm(owed) > 0


def without_resize(folder: str) -> dict[str, str]:
    found = {}
    for name, options in {"ranks": {}, "mesh": {"resize": True}}.items():
        model = model_of(())
        if name == "mesh":
            model = torch.nn.parallel.DistributedDataParallel(build(shard=lambda module, **options: module))
        try:
            pliant.load_run(folder, model, adamw(model), timeout_s=20, **options)
        except ValueError as error:
            found[name] = str(error)
    return found


@pytest.mark.extended
def test_what_cannot_be_loaded_is_refused_on_all_ranks(tmp_path):
    folder = str(tmp_path / "run")
    run(2, saves, KEEPING["int4"][0], (), folder)
    for found in run(3, without_resize, folder):
        assert "was saved by 2 ranks, but 3 load it" in found["ranks"]
        assert "the model's are whole on every rank" in found["mesh"]


def changed_since_the_save(folder: str) -> dict[str, str]:
    """Return what is said of a state that was saved on another mesh, or under another codec."""
    found = {}
    what, other = KEEPING["int4"][0], pliant.sharded(gradients="onebit", weights="differences(int4)")
    meshes = {"codec": None, "mesh": init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard"))}
    for name, mesh in meshes.items():
        model = build(width=FRESH, **({} if mesh is None else {"mesh": mesh}))
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, other if name == "codec" else what, timeout_s=60) as run_:
            train(model, optimizer, 1)
            before = own_weights(model).clone()
            try:
                run_.load_part(folder)
            except ValueError as error:
                found[name] = str(error)
            assert torch.equal(own_weights(model), before)
            train(model, optimizer, 1, first=1)
    return found


def saves_part(folder: str) -> None:
    model = build(width=FRESH)
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, KEEPING["int4"][0], timeout_s=60) as run_:
        train(model, optimizer, 1)
        run_.save_part(folder)


def test_a_mesh_or_a_codec_that_changed_since_the_save_is_refused_on_all_ranks(tmp_path):
    run(2, saves_part, str(tmp_path))
    for found in run(2, changed_since_the_save, str(tmp_path)):
        assert "was saved under the plan" in found["codec"]
        assert "was saved on a mesh of 1 x 2 ranks" in found["mesh"], found["mesh"]


def means(name: str, folder: str) -> dict[str, bool]:
    what, mesh = KEEPING[name]
    model = model_of(mesh)
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
        train(model, optimizer, 3)  # between two exchanges, when replicas differ
        mine = {n: p.full_tensor().double() for n, p in model.named_parameters()}
        held = run_.consolidate()
        parts = run_.consolidate(whole=False)
        differ, right = False, True
        for n, own in mine.items():
            total = own.clone()
            dist.all_reduce(total)
            differ |= not torch.equal(total / dist.get_world_size(), own)
            right &= apart(held[n].double(), total / dist.get_world_size()) < 1e-6
            right &= torch.equal(parts[n].full_tensor(), held[n])
    return {"differ": differ, "right": right, "names": held.keys() == model.state_dict().keys()}


@pytest.mark.parametrize("name", [pytest.param("diloco", marks=pytest.mark.extended), "local"])
def test_consolidate_returns_the_mean_of_replicas(name, tmp_path):
    size = 4 if name == "diloco" else 2
    for found in run(size, means, name, str(tmp_path)):
        assert found == {"differ": True, "right": True, "names": True}


def test_every_file_of_a_checkpoint_is_plain(tmp_path):
    run(2, saves, KEEPING["int4"][0], (), str(tmp_path / "run"))
    for file in Path(tmp_path / "run").rglob("*.pt"):
        assert not torch.serialization.get_unsafe_globals_in_checkpoint(file)
