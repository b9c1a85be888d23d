"""Steps of a run whose tensors lie on the device that is not there, without DDP, which knows real devices alone."""

from contextlib import contextmanager, nullcontext

import torch

from device import DEVICE, Stream, device_at_hand, to_device, to_host
from pliant import accelerator
from pliant.comm import RecordedComm, StagedComm, hierarchical_comm, staged
from pliant.engine import (
    background_average,
    bucket_layout,
    comm_thread,
    device_findings,
    gradient_exchange,
    pair_buckets,
    pair_partner,
    posted_weights,
    shard_groups,
    sharded_findings,
    weight_parts,
)
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.background_average import BackgroundAverage
from pliant.engine.between_steps import exchanges_between_steps
from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.comms import Comms
from pliant.engine.ddp_hook import ReadyBucket
from pliant.engine.gradient_exchange import GradientExchange
from pliant.engine.owned_ranges import place_owners
from pliant.engine.pair_partner import Partner
from pliant.engine.places import Places
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial
from pliant.spec import averaged_states

__all__ = ["CPU", "SHAPES", "StepRun", "on_device", "use_device"]

CPU = torch.device("cpu")
SHAPES = {"a": (40, 30), "b": (7,), "c": (64, 16), "d": (1300,)}
BUCKETS = (("d", "c"), ("b", "a"))
HOSTS = [[0], [1]]


class _LaneStream(Stream):
    """The stream of a communication thread."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_event(self, event):
        pass


def use_device(monkeypatch):
    """Let the engine find the device: its streams, host buffers, and a way to make tensors there in every thread."""

    def host_buffer(shape, dtype, beside):
        return torch.empty(shape, dtype=dtype)

    for module in (staged, device_findings, sharded_findings, weight_parts, pair_buckets, accelerator):
        monkeypatch.setattr(module, "pinned", host_buffer)
    for module in (staged, device_findings, sharded_findings, comm_thread, posted_weights, accelerator):
        monkeypatch.setattr(module, "current_stream", lambda device: _LaneStream())
    for module in (device_findings, bucket_layout, gradient_exchange, shard_groups):
        monkeypatch.setattr(module, "used_here", lambda *tensors: None)
    for module in (comm_thread, pair_partner, background_average):
        monkeypatch.setattr(module, "new_stream", lambda device: _LaneStream() if device == DEVICE else None)
    for kind, device_of in ((CommThread, "device"), (Partner, "_device"), (BackgroundAverage, "_device")):
        monkeypatch.setattr(kind, "_run", _there(kind._run, device_of))


def _there(run, device_of):
    """Return a method that can make tensors on the device, where the object works there."""

    def run_there(self, *arguments):
        with device_at_hand() if getattr(self, device_of) == DEVICE else nullcontext():
            run(self, *arguments)

    return run_there


@contextmanager
def on_device(device):
    with device_at_hand() if device == DEVICE else nullcontext():
        yield


class _Rates:
    """What the engine reads of an optimizer."""

    def __init__(self, parameters):
        self.param_groups = [{"lr": 0.05, "betas": (0.9, 0.999), "params": list(parameters)}]
        self.state = {}


class StepRun:
    """Carries out steps of one algorithm: gradients into the dispatcher, or weights into their exchange."""

    def __init__(self, place, node, device, nonfinite="raise", hosts=HOSTS):
        self._bring = to_device if device == DEVICE else torch.clone
        self.back = to_host if device == DEVICE else torch.clone
        comm = RecordedComm(StagedComm(place.comm) if device == DEVICE else place.comm)
        self.rank = place.rank
        comms = Comms(comm, {("host",): hierarchical_comm(comm, hosts)} if node.levels else {})
        generator = torch.Generator().manual_seed(7)
        self.parameters = {name: self._bring(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
        self.store = AlgorithmState(self.parameters, dict.fromkeys(SHAPES, node), comms)
        place_owners(self.store, comm.size, {})
        optimizer = _Rates(self.parameters.values())
        tracer = Tracer(CPU, comm)
        self.thread = CommThread(device, "gradients", tracer, 3 if device == DEVICE else 1)
        self.dispatcher = BucketDispatcher(self.thread, tracer, PlanOnTrial())
        self.gradients = GradientExchange(self.store, comms, nonfinite, optimizer, {})
        self.dispatcher.put_in_force(self.gradients, as_ready=True)
        self._optimizer = optimizer
        states = [each.name for each in averaged_states(node)]
        for name, parameter in self.parameters.items():
            optimizer.state[parameter] = {key: self._bring(torch.zeros(SHAPES[name])) for key in states}
        shapes = {n: {key: torch.empty(shape, device="meta") for key in states} for n, shape in SHAPES.items()}
        self.between = exchanges_between_steps(
            self.store, comms, Places(comm, CPU, hosts, ""), optimizer=optimizer, shapes=shapes, step=0, tracer=tracer
        )
        for part in self.between:
            part.reset_reference()

    def gradient(self, step, names):
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        return torch.cat([torch.randn(SHAPES[name], generator=generator).view(-1) for name in names])

    def backward(self, step, spoil=lambda gradient, names: gradient):
        """Hand over the gradients of a pass; return what became of them, bucket by bucket, where they are."""
        buffers = [self._bring(spoil(self.gradient(step, names), names)) for names in BUCKETS]
        for k, (names, buffer) in enumerate(zip(BUCKETS, buffers, strict=True)):
            self.dispatcher.receive(
                ReadyBucket(
                    index=k,
                    names=names,
                    shapes=tuple(SHAPES[name] for name in names),
                    buffer=buffer,
                    last=k == len(BUCKETS) - 1,
                    finish=lambda: None,
                )
            )
        return buffers

    def step(self, step, buffers):
        """Do what comes before an optimizer's step, the step, and what comes after it."""
        self.dispatcher.raise_late_error()
        for names, buffer in zip(BUCKETS, buffers, strict=True):
            parts = buffer.split([torch.Size(SHAPES[name]).numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                self.parameters[name].sub_(part.view(SHAPES[name]) * 0.05)
                for state in self._optimizer.state[self.parameters[name]].values():
                    state.add_(part.view(SHAPES[name]).square())  # the root is taken of some
        self.dispatcher.step += 1
        for each in self.between:
            each.after_step(step + 1)

    @property
    def states(self):
        """What the optimizer keeps, parameter by parameter."""
        return [value for state in self._optimizer.state.values() for value in state.values()]

    def close(self):
        self.thread.drain()
        for part in self.between:
            part.hand_back(self.dispatcher.step)
            part.close()
        self.thread.close()
