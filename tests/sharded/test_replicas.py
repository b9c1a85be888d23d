"""Replicas: HSDP and replicate() under algorithms of gradients, and under algorithms between steps on local shards."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from gpt import adamw, apart, build, loss, train, whole
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from worlds import run

import pliant
from pliant.comm.fsdp_private import param_groups
from tables import ALGORITHMS, BETWEEN_STEPS

pytestmark = [pytest.mark.processes]

SYNCHRONOUS = ("allreduce", "bf16", "bytegrad", "int4", "onebit", "powersgd", "topk", "tasc", "every", "delayed")
BETWEEN = ("gossip", "dcd", "local_sgd", "diloco", "streaming_diloco", "post_local_sgd")
BETWEEN += ("des_loc", "des_loc-warm", "des_loc-delayed")


def made(kind: str):
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        return build(mesh=mesh, width=34), mesh["replica"].get_group()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("replicate",))
    return build(shard=replicate, mesh=mesh, width=34), mesh.get_group()


def local_weights(model) -> torch.Tensor:
    return torch.cat([p.to_local().detach().flatten() for p in model.parameters()])


def replicas_equal(model, group) -> bool:
    mine = local_weights(model)
    both = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(both, mine, group=group)
    return all(torch.equal(each, both[0]) for each in both)


def places(model) -> list:
    """Return who fills the places that torch offers for communication, and among whom it averages by itself."""
    raws = [group.raw for group in param_groups(model)]
    return [
        (type(raw._all_gather_comm), type(raw._reduce_scatter_comm), raw._all_reduce_hook, raw.mesh_info)
        for raw in raws
    ]


def rows(kind: str, names: tuple[str, ...]) -> dict[str, tuple[float, bool, bool, float]]:
    model, group = made(kind)
    plain = train(model, adamw(model))
    found = {}
    for name in names:
        model, group = made(kind)
        optimizer = adamw(model)
        node = {**ALGORITHMS, **BETWEEN_STEPS}[name]
        before = places(model)
        with pliant.relax(model, optimizer, node, timeout_s=60) as run_:
            train(model, optimizer, 9)
            alike = replicas_equal(model, group)
            sent = run_.stats()["sent_bytes"]
        got = train(model, optimizer, 1, first=9)
        after = places(model)
        found[name] = (apart(got, plain), alike, replicas_equal(model, group) and before == after, sent)
    return found


def by_hosts(hosts: list[list[int]]) -> dict[str, tuple[float, bool]]:
    """Several replicas on a host add up exactly, and only the sums of hosts are coded."""

    def model_of():
        mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replica", "shard"))
        return build(mesh=mesh, width=34), mesh["replica"].get_group()

    model, group = model_of()
    plain = train(model, adamw(model), 5)
    found = {}
    for name, inner in {"exact": pliant.allreduce(), "onebit": pliant.onebit(), "diloco": pliant.diloco(2)}.items():
        model, group = model_of()
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, pliant.between_hosts(inner), hosts=hosts, timeout_s=60):
            train(model, optimizer, 4)
        got = train(model, optimizer, 1, first=4)
        found[name] = apart(got, plain), replicas_equal(model, group)
    return found


@pytest.mark.extended
@pytest.mark.parametrize("hosts", [[[0], [1]], [[0, 1], [2, 3]]])
def test_replicas_may_have_two_levels(hosts):
    for found in run(sum(map(len, hosts)), by_hosts, hosts):
        assert found["exact"][0] <= 1e-6
        assert 0 < found["onebit"][0] < 0.2
        assert all(alike for _, alike in found.values())


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("hsdp", ("allreduce", "onebit")),
        *(pytest.param(kind, SYNCHRONOUS, marks=pytest.mark.extended) for kind in ("hsdp", "replicate")),
    ],
)
def test_replicas_stay_equal_under_every_algorithm_of_gradients(kind, names):
    for found in run(4 if kind == "hsdp" else 3, rows, kind, names):
        assert found["allreduce"][0] <= 1e-6
        for name, (error, alike, after, sent) in found.items():
            assert alike, name
            assert after, f"{name}: after close() torch averages replicas again"
            assert error < 0.2, (name, error)
            assert sent > 0, name


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["hsdp", "replicate"])
def test_replicas_are_one_again_after_algorithms_between_steps(kind):
    for found in run(4 if kind == "hsdp" else 2, rows, kind, BETWEEN):
        for name, (error, _, after, sent) in found.items():
            assert after, name
            assert error < 0.3, (name, error)
            assert sent > 0, name


def in_bf16() -> tuple[float, bool]:
    """Torch casts reduced gradients to float32 as soon as the hook has returned."""
    ends = []
    for relaxes in (False, True):
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard"))
        model = build(mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, "allreduce", agreement_every=0) if relaxes else nullcontext():
            ends.append(train(model, optimizer, 4))
    return apart(*ends), replicas_equal(model, mesh["replica"].get_group())


@pytest.mark.extended
def test_gradients_that_are_reduced_in_16_bits_reach_replicas_before_they_are_cast():
    for error, alike in run(2, in_bf16):
        assert alike
        assert error < 1e-3


def accumulated(mesh: tuple[int, int], what) -> tuple[float, float, float]:
    """Train with and without `set_requires_all_reduce`; return how far from torch, and apart, and the bytes' ratio."""
    ends, sent = [], []
    for relaxes, defers in ((False, True), (True, True), (True, False)):
        model = build(width=8, mesh=init_device_mesh("cpu", mesh, mesh_dim_names=("replica", "shard")))
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, what, timeout_s=60) if relaxes else nullcontext() as run_:
            for step in range(3):
                for part in range(3):
                    model.set_requires_all_reduce(part == 2 or not defers)
                    (loss(model, 7 * step + part) / 3).backward()
                optimizer.step()
                optimizer.zero_grad()
            sent.append(run_.stats()["sent_bytes"] if relaxes else 0)
        ends.append(whole(model))
    return apart(ends[1], ends[0]), apart(ends[2], ends[1]), sent[2] / sent[1]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mesh", "what"),
    [
        ((2, 1), "allreduce"),
        ((2, 2), "allreduce"),
        ((2, 1), "local_sgd(1)"),
        ((2, 2), pliant.sharded(gradients="allreduce", replicas="allreduce")),
    ],
)
def test_replicas_average_once_for_all_passes_that_defer_it(mesh, what):
    for from_torch, from_each_pass, ratio in run(mesh[0] * mesh[1], accumulated, mesh, what):
        assert from_torch <= 1e-6 or what == "local_sgd(1)"  # under which weights are averaged, behind AdamW
        assert from_each_pass <= 1e-6
        assert what != "allreduce" or ratio == pytest.approx(3)


def given_up() -> float:
    """Return how far from torch training goes on behind a pass that was to be averaged later, and is given up."""
    ends = []
    for relaxes in (False, True):
        model = build(width=8, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")))
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, "allreduce", timeout_s=60) if relaxes else nullcontext():
            model.set_requires_all_reduce(False)
            loss(model, 50).backward()
            model.reset_iter_state()
            optimizer.zero_grad()
            model.set_requires_all_reduce(True)
            ends.append(train(model, optimizer, 2))
    return apart(ends[1], ends[0])


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="torch 2.13 and later forget a pass")
def test_gradients_that_torch_forgets_are_not_kept_for_a_later_average():
    assert max(run(2, given_up)) <= 1e-6


def at_their_own_pace() -> list:
    """Replicas end after different numbers of steps; return a state of the optimizer from each."""
    model = build(mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")))
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, "async_average", timeout_s=60):
        train(model, optimizer, 2 + dist.get_rank())
    kept = [optimizer.state[p] for p in model.parameters()]
    mine = [(own["step"].item(), own["exp_avg"].to_local().double().sum().item()) for own in kept]
    theirs = [None] * 2
    dist.all_gather_object(theirs, (mine, local_weights(model).tolist()))
    return theirs


@pytest.mark.extended
def test_replicas_that_end_after_different_steps_get_one_state_of_the_optimizer():
    for first, second in run(2, at_their_own_pace):
        assert first == second


def after_a_skip() -> tuple[float, float]:
    """One replica skips a step; return its loss in the next pass, and its weights', which are those of the exchange."""
    model = build(mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")))
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu", 4.0)
    with pliant.relax(model, optimizer, pliant.local_sgd(1), nonfinite="propagate", timeout_s=60):
        for step in range(2):
            overflows = step == 1 and dist.get_rank() == 1
            scaler.scale(loss(model, step) * (torch.inf if overflows else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss(model, 7, stream=0).item(), loss(model, 7, stream=0).item()


@pytest.mark.extended
def test_a_pass_after_a_skipped_step_computes_with_the_weights_of_the_exchange_that_it_caught_up_with():
    (first, again), (other, other_again) = run(2, after_a_skip)
    assert first == again == other == other_again


def with_the_momentum() -> bool:
    model = build(width=8, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")))
    optimizer = pliant.OneBitAdam(model.parameters(), lr=1e-3, warmup_steps=2)
    with pliant.relax(model, optimizer, "allreduce", timeout_s=60) as run_:
        train(model, optimizer, 1)
        run_.switch("onebit_adam")
        slots = run_.state_dict()[f"rank{dist.get_rank()}"]["slots"]
        same = all(
            torch.equal(slots[name]["momentum"], optimizer.state[p]["exp_avg"].to_local())
            for name, p in model.named_parameters()
        )
        train(model, optimizer, 3, first=1)
    return same and any(bool(own["momentum"].any()) for own in slots.values())


@pytest.mark.extended
def test_an_exchange_of_momenta_begins_with_those_that_the_optimizer_has_of_its_shards():
    assert run(2, with_the_momentum) == [True, True]


class Halves(nn.Module):
    """Two layers, of which a pass may leave out the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, both: bool) -> torch.Tensor:
        return self.second(self.first(x) if both else x).clone()


def with_unused(kind: str) -> list[str]:
    torch.manual_seed(0)
    if kind == "hsdp":
        model = fully_shard(Halves(), mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard")))
    else:
        model = replicate(Halves(), mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",)))
    optimizer, told, groups = adamw(model), [], len(c10d._world.pg_map)
    with pliant.relax(model, optimizer, "onebit", timeout_s=60):
        for both in (True, False, False, True):
            try:
                model(torch.randn(3, 4), both=both).square().mean().backward()
            except RuntimeError as error:
                told.append(str(error))
                model.set_reduce_scatter_unused_params(True)
            else:
                optimizer.step()
            optimizer.zero_grad()
    left_over = len(c10d._world.pg_map) - groups
    return [*told, f"finite {bool(local_weights(model).isfinite().all())}, {left_over} groups left over"]


@pytest.mark.parametrize("kind", ["hsdp", "replicate"])
def test_a_pass_that_leaves_out_parameters_is_refused_or_sends_zeros_among_replicas(kind):
    for told, finite in run(2, with_unused, kind):
        assert "gave gradients to a part of the model itself only" in told
        assert "call set_reduce_scatter_unused_params(True) on the model" in told
        assert finite == "finite True, 0 groups left over"


def with_others_trained(what, mesh: tuple[int, ...]) -> list[str]:
    """Return what is said where a layer is frozen after relax(), and where one is trained that was frozen then."""
    torch.manual_seed(0)
    names = {"mesh_dim_names": ("replica", "shard")} if len(mesh) > 1 else {}
    model = fully_shard(Halves(), mesh=init_device_mesh("cpu", mesh, **names))
    optimizer, told, made = adamw(model), [], 0
    for trains in (True, False):
        before = len(told)
        model.first.requires_grad_(trains)
        with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
            for changes in (False, True):
                model.first.requires_grad_(trains != changes)
                optimizer.zero_grad()
                try:
                    model(torch.randn(3, 4), both=True).square().mean().backward()
                    optimizer.step()
                except RuntimeError as error:
                    told.append(str(error))
            made += 2 - (len(told) - before)
            assert run_.steps == made  # of the optimizer, in both runs
    return told


@pytest.mark.parametrize(
    ("what", "mesh"),
    [("onebit", (2, 1)), (pliant.sharded(gradients="int4"), (2,)), (pliant.sharded(gradients="allreduce"), (2,))],
)
def test_a_layer_that_is_trained_or_frozen_later_is_refused_with_a_cure_that_fits(what, mesh):
    for told in run(2, with_others_trained, what, mesh):
        if isinstance(what, str) or what.gradients.codec is not None:
            assert len(told) == 2
            assert all("first.weight, first.bias were frozen, or trained anew, after relax()" in each for each in told)
        else:
            assert len(told) == 1  # exact means do not mix up parameters
            assert "nothing exchanges, since they were frozen" in told[0]
        assert all("close() the run and call relax() again" in each for each in told)


def evaluated(what, mesh: tuple[int, int]) -> tuple[float, float, bool, bool]:
    """Return losses with the mean, and whether each replica goes on with its own weights, and ends with the mean."""

    @torch.no_grad()
    def now() -> float:
        return loss(model, 99, stream=0).item()

    model = build(mesh=init_device_mesh("cpu", mesh, mesh_dim_names=("replica", "shard")))
    optimizer = adamw(model)
    with pliant.relax(model, optimizer, what, timeout_s=60) as run_:
        train(model, optimizer, 3)  # between two exchanges, when replicas differ
        before = now()
        with run_.consolidated():
            mean = now()
        own = now() == before
        train(model, optimizer, 2, first=3)
        now()
    ended = now()
    model.reshard()
    return before, mean, own, ended == now()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("what", "mesh"),
    [
        (pliant.local_sgd(4), (2, 1)),
        (pliant.sharded(weights="allreduce", regather=False, replicas=pliant.local_sgd(4)), (2, 2)),
    ],
)
def test_an_evaluation_leaves_no_weights_behind(what, mesh):
    """FSDP2 keeps the root's weights gathered after a forward pass."""
    found = run(mesh[0] * mesh[1], evaluated, what, mesh)
    for before, mean, own, ended in found:
        assert mean == found[0][1] != before
        assert own
        assert ended


def with_muon(kind: str) -> list[str]:
    model, _ = made(kind)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "blocks" in name]
    others = [p for p in model.parameters() if all(p is not each for each in matrices)]
    optimizers = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(others, lr=0.01)]
    said = []
    for what in ("muloco", "local_sgd", "allreduce"):
        try:
            pliant.relax(model, optimizers, what, timeout_s=60).close()
        except ValueError as error:
            said.append(f"{what}: {error}")
    return said


@pytest.mark.parametrize(("kind", "size"), [pytest.param("hsdp", 4, marks=pytest.mark.extended), ("replicate", 2)])
def test_muon_would_mix_replicas_that_differ_and_is_refused(kind, size):
    for said in run(size, with_muon, kind):
        assert [each.split(":")[0] for each in said] == ["muloco", "local_sgd"]
        assert all("Muon multiplies whole matrices" in each for each in said)
