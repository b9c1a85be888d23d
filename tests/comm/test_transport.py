"""Transports of a model's tensors: by the place of the ranks, what was asked for, and the device of each tensor."""

import pytest
import torch
import torch.distributed as dist

from device import Stream, to_device, to_host
from pliant.comm import ByDeviceComm, ProcessGroupComm, RecordedComm, StagedComm, run_world, staged, transport
from pliant.comm.base import duplicate
from pliant.comm.transport import by_host, comm_for, require_transport
from pliant.engine import launcher_env
from pliant.engine.launcher_env import are_on_one_host

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    monkeypatch.setattr(staged, "current_stream", lambda device: Stream())
    monkeypatch.setattr(staged, "pinned", lambda shape, dtype, beside: torch.empty(shape, dtype=dtype))


def chosen(place, device, asked, *, one_host):
    comm, host = comm_for(
        place.process_group, 10, 10, device=device, transport=asked, on_one_host=lambda ranks: one_host
    )
    assert isinstance(host, ProcessGroupComm)
    host.with_timeout(5)
    found = comm.timeout_s
    host.barrier()  # a rank that closes while another one still connects ends that one's start
    comm.close()
    assert found == 5
    return type(comm)


@pytest.mark.parametrize(
    ("backend", "asked", "one_host", "wanted"),
    [
        ("nccl", "auto", True, ByDeviceComm),
        ("nccl", "auto", False, StagedComm),
        ("nccl", "host", True, StagedComm),
        ("nccl", "device", False, ByDeviceComm),
        ("gloo", "auto", True, StagedComm),
        ("", "auto", True, StagedComm),
    ],
)
def test_gloo_from_host_memory_between_hosts_and_the_devices_backend_inside(
    monkeypatch, backend, asked, one_host, wanted
):
    monkeypatch.setattr(transport, "backend_of", lambda group, device: backend if device == GPU else "gloo")
    monkeypatch.setattr(transport, "comm_beside", lambda host, group, device: duplicate(host))
    assert run_world(2, lambda place: chosen(place, GPU, asked, one_host=one_host)) == [wanted] * 2


def test_a_model_on_the_cpu_has_one_group():
    assert run_world(2, lambda place: chosen(place, CPU, "auto", one_host=True)) == [ProcessGroupComm] * 2


def test_a_second_group_is_made_beside_that_of_the_host(monkeypatch):
    """Over torch's default world; as there is no NCCL here, Gloo stands for it, and the kind of group says so."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(transport, "_has_own_backend", lambda group, device: True)
        monkeypatch.setattr(transport, "is_accelerator", lambda device: True)
        comm, host = comm_for(
            dist.group.WORLD,
            10,
            10,
            device=CPU,
            transport="auto",
            on_one_host=lambda ranks: are_on_one_host(ranks, None),
        )
        assert isinstance(comm, ByDeviceComm)
        host.with_timeout(3)
        comm.barrier()
        assert comm.split([[0]]).timeout_s == comm.timeout_s == 3
        comm.hang_up()
        comm.close()
    finally:
        dist.destroy_process_group()


def test_what_cannot_be_is_refused():
    def body(place):
        with pytest.raises(ValueError, match="transport is 'nccl', but must be 'auto', 'host' or 'device'"):
            require_transport("nccl", place.process_group, CPU)
        with pytest.raises(ValueError, match=r"own backend of cuda:1, but the process group has no backend.*'nccl'"):
            require_transport("device", place.process_group, GPU)
        with pytest.raises(ValueError, match=r"own backend of cpu, but the process group has gloo"):
            require_transport("device", place.process_group, CPU)
        require_transport("auto", place.process_group, GPU)

    run_world(1, body)


def test_ranks_know_whether_they_are_on_one_host(monkeypatch):
    assert run_world(2, lambda place: are_on_one_host(place.comm, None)) == [True] * 2
    assert run_world(2, lambda place: are_on_one_host(place.comm, [[0, 1]])) == [True] * 2
    assert run_world(2, lambda place: are_on_one_host(place.comm, [[0], [1]])) == [False] * 2
    names = iter(["here", "there"])
    monkeypatch.setattr(launcher_env.socket, "gethostname", lambda: next(names))
    assert run_world(2, lambda place: are_on_one_host(place.comm, None)) == [False] * 2
    monkeypatch.setenv("GROUP_RANK", "7")
    assert run_world(2, lambda place: are_on_one_host(place.comm, None)) == [True] * 2


def test_each_tensor_goes_through_the_group_of_its_device():
    """Every verb, on tensors of both; what went through which is counted."""

    def body(place):
        device, host = RecordedComm(StagedComm(duplicate(place.comm))), RecordedComm(place.comm)
        comm, size, me = ByDeviceComm(device, host), place.size, place.rank
        found = []
        for on, back in ((lambda x: x, lambda x: x), (to_device, to_host)):
            x, wide = on(torch.arange(3.0) + me), on(torch.arange(3.0 * size) * (me + 1))
            gathered, scattered, turned, received = (on(torch.zeros(n)) for n in (3 * size, 3, 3 * size, 3))
            total, first, at_root = (on(torch.arange(3.0) + me) for _ in range(3))
            comm.all_gather(gathered, x).wait()
            comm.reduce_scatter(scattered, wide).wait()
            comm.all_to_all(turned, wide).wait()
            comm.exchange([((me + 1) % size, x)], [((me - 1) % size, received)]).wait()
            comm.all_reduce(total).wait()
            comm.broadcast(first, 1).wait()
            comm.reduce(at_root, 0).wait()
            part = comm.split([[0, 1], [2]])
            part.all_reduce(first).wait()
            found.append([back(t) for t in (gathered, scattered, turned, received, total, first)])
        comm.barrier()
        assert comm.exchange([], []).wait() is None
        with pytest.raises(ValueError, match="partly on the host and partly on the device"):
            comm.exchange([(0, torch.ones(1)), (0, to_device(torch.ones(1)))], [])
        return found, device.sent_bytes, host.sent_bytes

    for (on_host, on_device), of_device, of_host in run_world(3, body, timeout_s=20):
        assert all(map(torch.equal, on_host, on_device))
        assert of_device > 0
        assert of_host > 0


def test_a_comm_of_the_host_is_wrapped_for_devices_alone():
    def body(place):
        assert by_host(place.comm, CPU) is place.comm
        assert isinstance(by_host(place.comm, GPU), StagedComm)

    run_world(1, body)
