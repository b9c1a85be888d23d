"""Communication of tensors on an accelerator, with groups and streams that only note what is asked of them."""

import threading

import pytest
import torch
import torch.distributed as dist

from pliant import accelerator
from pliant.comm import calls, process_group, run_world
from pliant.comm.recorded import RecordedComm
from pliant.comm.torch_private import backend_of, hang_up
from pliant.engine import comm_thread as lanes
from pliant.engine.comm_thread import CommThread
from pliant.engine.tracer import Tracer


class Noted:
    """A work that notes the arguments of its waits."""

    def __init__(self):
        self.waits = []

    def wait(self, *limits):
        self.waits.append(limits)


@pytest.mark.parametrize("on_device", [True, False])
def test_no_wait_with_a_limit_holds_up_the_host_on_an_accelerator(on_device, monkeypatch):
    work, batches = Noted(), []
    for module in (calls, process_group):
        monkeypatch.setattr(module, "is_accelerator", lambda device: on_device)
    monkeypatch.setattr(calls, "backend_of", lambda group, device: "nccl")
    monkeypatch.setattr(calls, "batched", lambda *arguments: batches.append(arguments) or [work])
    monkeypatch.setattr(dist, "all_reduce", lambda *arguments, **settings: work)

    def body(place):
        place.comm.all_reduce(torch.ones(2)).wait()
        x = torch.ones(2)
        if on_device:
            place.comm.exchange([(0, x)], [(0, x)]).wait()

    run_world(1, body)
    assert len(batches) == on_device, "messages of a round are one operation"
    assert [len(limits) for limits in work.waits] == ([0, 0] if on_device else [1])


class Group:
    """A group of two ranks with a backend for each kind of device, as torch makes them; its own name says nothing."""

    def __init__(self, **names):
        self._names = names
        self._device_types = [torch.device(kind) for kind in names]
        self.aborted, self.received = 0, []

    def name(self):
        return "undefined"

    def rank(self):
        return 0

    def size(self):
        return 2

    def _get_backend(self, device):
        if device.type not in self._names:
            raise RuntimeError("no backend")
        return type("Backend", (), {"name": lambda _: self._names[device.type]})()

    def abort(self):
        self.aborted += 1

    def recv(self, tensors, peer, tag):
        self.received.append(peer)
        return Noted()


def test_the_backend_is_that_of_the_device():
    mixed = Group(cpu="gloo", cuda="NCCL")
    assert [backend_of(mixed, torch.device(kind)) for kind in ("cpu", "cuda", "xpu")] == ["gloo", "nccl", ""]


@pytest.mark.parametrize(
    ("group", "aborted", "received"),
    [(Group(cpu="gloo"), 0, [1]), (Group(cuda="nccl"), 1, []), (Group(cpu="gloo", cuda="nccl"), 1, [1])],
    ids=["gloo", "nccl", "both"],
)
def test_hanging_up_breaks_every_backend(group, aborted, received):
    hang_up(group)
    assert (group.aborted, group.received) == (aborted, received)


class Stream:
    """A stream that notes what happens on it; entered, it is the current one."""

    def __init__(self, name):
        self.name, self.log, self.entered = name, [], 0

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *_):
        pass

    def wait_event(self, event):
        self.log.append(f"waits for {event}")

    def record_event(self):
        return f"an event of {self.name}"


def test_tasks_run_beside_on_a_stream_of_the_models_device(monkeypatch):
    """Not of the current device: whoever has two and sets none would let the wrong stream wait."""
    device, asked = torch.device("cuda", 1), []
    own, current = Stream("own"), Stream("current")
    monkeypatch.setattr(lanes, "new_stream", lambda of: asked.append(of) or own)
    monkeypatch.setattr(lanes, "current_stream", lambda of: asked.append(of) or current)

    def body(place):
        lane = CommThread(device, "lane", Tracer(torch.device("cpu"), RecordedComm(place.comm)))
        done = []
        lane.submit(lambda: done.append((own.entered, threading.current_thread().name))).wait()
        lane.close()
        return done

    assert run_world(1, body) == [[(1, "lane")]], "in a thread, since a task may wait for the device"
    assert set(asked) == {device}
    assert own.log == ["waits for an event of current"]
    assert current.log == ["waits for an event of own"]


def test_only_one_file_knows_accelerators_and_a_cpu_is_none():
    cpu = torch.device("cpu")
    assert [accelerator.is_accelerator(torch.device(kind)) for kind in ("cpu", "meta", "cuda", "xpu")] == [
        *(False, False),
        *(True, True),
    ]
    assert accelerator.new_stream(cpu) is None
    assert accelerator.generator_state(cpu) is None
    accelerator.synchronize(cpu)
    buffer = accelerator.pinned((2, 3), torch.bfloat16, cpu)
    assert (buffer.shape, buffer.dtype, buffer.device) == ((2, 3), torch.bfloat16, cpu)
