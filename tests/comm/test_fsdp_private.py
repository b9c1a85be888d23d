"""Private names of torch that sharded models need, as they are in every version that Pliant allows."""

import dataclasses
import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_common, _fsdp_param_group

from pliant.comm.fsdp_private import _COMMUNICATES, is_sharded, param_groups, settle_sharding
from pliant.comm.fsdp_waits_private import _METHODS, _PLACES, RESET


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of a world of one
def test_groups_have_what_is_read_and_written(world):
    for shard in (fully_shard, replicate):
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
        assert not is_sharded(model)
        shard(model[0], mesh=init_device_mesh("cpu", (1,)))
        shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert is_sharded(model)
        assert isinstance(model, FSDPModule)
        settle_sharding(model)
        groups = param_groups(model)
        assert [group.name for group in groups] == ["the model itself", "0"]
        for group in groups:
            group.refuse_foreign()
            assert group.valid_numels(0) == group.padded_numels
            assert group.gathered_dtypes == {torch.float32}
            assert not group.has_extensions
            assert not group.reads_at_once(torch.float32) or shard is replicate
            assert group.reads_at_once(torch.bfloat16)  # torch casts it
            group.reshard()
            raw = group.raw
            for name in (
                "_all_gather_result",
                "all_reduce_grads",
                "post_forward_mesh_info",
                "gradient_divide_factor",
                "_orig_dtype",
                "fsdp_params",
                "mesh_info",
            ):
                assert hasattr(raw, name), name
            assert hasattr(raw, RESET) == hasattr(model, "reset_iter_state")
            for parameter in raw.fsdp_params:
                for name in ("sharded_param", "offload_to_cpu", "padded_sharded_param_size", "_orig_size"):
                    assert hasattr(parameter, name), name
                for name in ("fsdp_placement", "param_dtype", "orig_dtype", "reduce_dtype", "_sharded_local_tensor"):
                    assert hasattr(parameter, name), name
            before = raw._all_gather_comm, raw._reduce_scatter_comm, raw._all_reduce_hook, raw.mesh_info
            group.install("gather", "scatter", print)
            assert (raw._all_gather_comm, raw._reduce_scatter_comm, raw._all_reduce_hook) == (
                "gather",
                "scatter",
                print,
            )
            with pytest.raises(ValueError, match="Pliant needs that place; leave it out"):
                param_groups(model)[0 if group.name != "0" else 1].refuse_foreign()
            group.restore()
            symmetric = _fsdp_collectives.SymmMemAllGather
            group.install(symmetric.__new__(symmetric), None, None)
            with pytest.raises(ValueError, match=r"has SymmMemAllGather .*set_symm_mem.* leave it out"):
                param_groups(model)[0 if group.name != "0" else 1].refuse_foreign()
            group.restore()
            assert (raw._all_gather_comm, raw._reduce_scatter_comm, raw._all_reduce_hook, raw.mesh_info) == before


@pytest.mark.filterwarnings("ignore")  # of a world of one
def test_what_stands_for_parameters_after_a_forward_pass_is_known(world):
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    for each in (model[0], model):
        fully_shard(each, mesh=init_device_mesh("cpu", (1,)))
    kept = list(model.parameters())
    model(torch.ones(1, 4))  # after which the root's weights stay gathered
    stand_ins = {key: p for group in param_groups(model) for key, p in group.stand_ins.items()}
    now = list(model.parameters())
    assert any(p is not before for p, before in zip(now, kept, strict=True))
    assert all(stand_ins.get(id(p), p) is before for p, before in zip(now, kept, strict=True))


@pytest.mark.filterwarnings("ignore")  # of a world of one
def test_waits_are_wrapped_until_they_are_closed(world, monkeypatch):
    model = nn.Linear(4, 6)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    settle_sharding(model)
    (group,) = param_groups(model)
    raw, heard = group.raw, []

    def wrap(call):
        return lambda *given, **named: (heard.append(getattr(call, "__name__", type(call).__name__)), call(*given))[1]

    for on_accelerator, wrapped in ((False, _PLACES), (True, _METHODS)):
        monkeypatch.setattr("pliant.comm.fsdp_waits_private.is_accelerator", lambda _, found=on_accelerator: found)
        before = dict(vars(raw))
        waits = group.wrap_waits(wrap)
        assert all(vars(raw)[name] is not before.get(name) for name in wrapped)
        model(torch.ones(2, 4)).sum().backward()
        assert {*heard} == ({*_METHODS} if on_accelerator else set())  # one rank alone makes no collective
        param_groups(model)[0].refuse_foreign()  # a run may begin meanwhile
        for _ in range(2):
            waits.close()
        assert {name: vars(raw).get(name) for name in wrapped} == {name: before.get(name) for name in wrapped}
        heard.clear()
        model(torch.ones(2, 4)).sum().backward()
        assert not heard


@pytest.mark.filterwarnings("ignore")  # of a world of one
def test_what_a_run_has_put_there_stays_or_goes_with_the_run(world):
    model = nn.Linear(4, 6)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    settle_sharding(model)
    group, seen = param_groups(model)[0], param_groups(model)[0]  # a run's, and one that observes it
    raw, plain, own = group.raw, group.raw._all_gather_comm, object()
    group.install(own, None, None)
    waits = seen.wrap_waits(lambda call: call)
    assert raw._all_gather_comm is not own
    waits.close()
    assert raw._all_gather_comm is own
    waits = seen.wrap_waits(lambda call: call)
    group.restore()
    waits.close()
    assert raw._all_gather_comm is plain


def test_places_are_called_as_they_are_filled():
    source = inspect.getsource(_fsdp_collectives.foreach_reduce)
    assert source.count("reduce_scatter_comm.allocate(") == 2  # the input, then the output
    for call in ("output_tensor=reduce_output", "input_tensor=reduce_scatter_input", "all_reduce_hook(reduce_output)"):
        assert call in source
    assert "all_gather_work.wait()" in inspect.getsource(_fsdp_collectives.foreach_all_gather_copy_out)
    fields = {each.name for each in dataclasses.fields(_fsdp_common.FSDPMeshInfo) if each.init}
    assert {"mesh", "shard_mesh_dim", "replicate_mesh_dim"} <= fields
    assert "self.mesh_info != self.post_forward_mesh_info" in inspect.getsource(_fsdp_param_group.FSDPParamGroup)


@pytest.mark.filterwarnings("ignore")  # of a world of one
def test_errors_of_what_a_group_communicates_are_explained_until_it_is_restored(world, monkeypatch):
    model = nn.Linear(4, 6)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    settle_sharding(model)
    (group,) = param_groups(model)
    kind, asked = type(group.raw), []

    def fail(*_):
        raise RuntimeError("a message of torch")

    def explain(error, what, waited_s):
        asked.append((str(error), what, waited_s >= 0))
        return ValueError("explained") if what == "reduction of the gradients" else None

    for name, what in _COMMUNICATES.items():
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, fail)
            group.watch(explain)
            expected = "explained" if "reduction" in what else "a message of torch"
            with pytest.raises((RuntimeError, ValueError), match=expected):
                getattr(group.raw, name)()
            assert asked.pop() == ("a message of torch", what, True)
            group.restore()
            with pytest.raises(RuntimeError, match="a message of torch"):
                getattr(group.raw, name)()
            assert not asked
    assert not set(_COMMUNICATES) & set(vars(group.raw))
