"""A comm for tensors of an accelerator: their bytes go by way of host memory, and between hosts over Gloo."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pliant.accelerator import current_stream, is_accelerator, pinned
from pliant.comm.base import Comm, PeerSlots, PeerTensors, ReduceOp, Work, require_contiguous
from pliant.comm.wrapped import WrappedComm

__all__ = ["StagedComm"]


class _Buffers:
    """Buffers in host memory, which are used again: once all sizes have come, nothing is allocated."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[torch.Size, torch.dtype], list[tuple[Tensor, Any]]] = defaultdict(list)
        self.num_made = 0
        self._lock = threading.Lock()  # two threads may send, and a third one waits

    def take(self, like: Tensor) -> Tensor:
        """Return a buffer of the same shape and dtype that no copy uses any more."""
        with self._lock:
            free = self._free[like.shape, like.dtype]
            # The one that has been free for longest, whose copy is most likely over.
            buffer, used = free.pop(0) if free else (None, None)
            self.num_made += buffer is None
        if buffer is None:
            return pinned(like.shape, like.dtype, like.device)
        _settle(used)
        return buffer

    def give_back(self, buffer: Tensor, used: Any = None) -> None:
        """Keep a buffer for later; `used` is the event after which no copy uses it."""
        with self._lock:
            self._free[buffer.shape, buffer.dtype].append((buffer, used))


class _StagedWork:
    """A communication of host buffers, after which what came is copied to the device."""

    def __init__(
        self, comm: "StagedComm", work: Work, outs: Sequence[tuple[Tensor, Tensor]], ins: Sequence[Tensor]
    ) -> None:
        self._comm, self._work, self._outs, self._ins = comm, work, outs, ins

    def wait(self) -> None:
        """Block until the wire is done; the device copies when its stream comes to it."""
        self._work.wait()
        for x, buffer in self._outs:
            x.copy_(buffer, non_blocking=True)
            self._comm.buffers.give_back(buffer, _recorded(x.device))
        for buffer in self._ins:
            self._comm.buffers.give_back(buffer)
        self._outs, self._ins = (), ()


class StagedComm(WrappedComm):
    """Carries tensors of an accelerator through host memory over another comm; those of the host go straight to it.

    Steps: what is sent is copied to a pinned buffer by the stream that is current, and the host waits for that copy
    alone; the other comm exchanges buffers, as on a CPU; `wait` copies what came back, without waiting for the device.
    So the order of messages, their timeouts, and how a lost rank is named are those of the other comm. Call it in a
    thread that may block, as a `CommThread` may.

    Bytes: those of the other comm, and each once between device and host in each direction. Buffers are used again,
    as many of a size as are in flight at once. Receives that stand (`StandingReceives`) hold theirs meanwhile; what
    comes is copied to the device when somebody waits for it, so that a tensor may be read until then.

    Args:
        comm: Over Gloo, or any that carries tensors of the host.

    """

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self.buffers = _Buffers()

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._replaced(x, lambda host: self._comm.all_reduce(host, op))

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        return self._filled(out, x, lambda out, x: self._comm.all_gather(out, x))

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._filled(out, x, lambda out, x: self._comm.reduce_scatter(out, x, op))

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        return self._filled(out, x, lambda out, x: self._comm.all_to_all(out, x))

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor]],
        *,
        turn: int = 0,
        tag: int = 0,
        patience_s: float | None = None,
    ) -> Work:
        tensors = [x for _, x in (*sends, *receives)]
        require_contiguous(*tensors)
        if not any(is_accelerator(x.device) for x in tensors):
            return self._comm.exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)
        out, ins = self._copied(sends)
        into, outs = self._received(receives)
        work = self._comm.exchange(out, into, turn=turn, tag=tag, patience_s=patience_s)
        return _StagedWork(self, work, outs, ins)

    def expect(self, receives: PeerTensors, *, turn: int = 0, tag: int = 0) -> Work:
        tensors = [x for _, x in receives]
        require_contiguous(*tensors)
        if not any(is_accelerator(x.device) for x in tensors):
            return self._comm.expect(receives, turn=turn, tag=tag)
        into, outs = self._received(receives)
        return _StagedWork(self, self._comm.expect(into, turn=turn, tag=tag), outs, ())

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._replaced(x, lambda host: self._comm.broadcast(host, root))

    def reduce(self, x: Tensor, root: int) -> Work:
        return self._replaced(x, lambda host: self._comm.reduce(host, root))

    def barrier(self) -> None:
        self._comm.barrier()

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> "StagedComm | None":
        part = self._comm.split(groups, connections)
        return None if part is None else StagedComm(part)

    def _copied(self, sends: PeerTensors) -> tuple[PeerTensors, list[Tensor]]:
        """Return what is sent in host buffers, and these."""
        if isinstance(sends, PeerSlots):
            (buffer,) = self._copies([sends.whole])
            return sends.on(buffer), [buffer]
        sent = {id(x): x for _, x in sends}  # one that goes to several ranks is copied once
        buffers = dict(zip(sent, self._copies(list(sent.values())), strict=True))
        return [(peer, buffers[id(x)]) for peer, x in sends], list(buffers.values())

    def _received(self, receives: PeerTensors) -> tuple[PeerTensors, list[tuple[Tensor, Tensor]]]:
        """Return host buffers for what is received, and each with the tensor into which it is to be copied."""
        if isinstance(receives, PeerSlots):
            buffer = self.buffers.take(receives.whole)
            return receives.on(buffer), [(receives.whole, buffer)]
        into = [(peer, x, self.buffers.take(x)) for peer, x in receives]
        return [(peer, buffer) for peer, _, buffer in into], [(x, buffer) for _, x, buffer in into]

    def _replaced(self, x: Tensor, start: Callable[[Tensor], Work]) -> Work:
        """Start a collective that replaces x."""
        require_contiguous(x)
        if not is_accelerator(x.device):
            return start(x)
        (buffer,) = self._copies([x])
        return _StagedWork(self, start(buffer), [(x, buffer)], [])

    def _filled(self, out: Tensor, x: Tensor, start: Callable[[Tensor, Tensor], Work]) -> Work:
        """Start a collective that fills out from x."""
        require_contiguous(out, x)
        if not is_accelerator(x.device):
            return start(out, x)
        (buffer,) = self._copies([x])
        into = self.buffers.take(out)
        return _StagedWork(self, start(into, buffer), [(out, into)], [buffer])

    def _copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return host buffers with the values of tensors, once the device has copied them."""
        buffers = [self.buffers.take(x) for x in tensors]
        for x, buffer in zip(tensors, buffers, strict=True):
            buffer.copy_(x, non_blocking=True)
        for device in {x.device for x in tensors}:
            _settle(_recorded(device))
        return buffers


def _recorded(device: torch.device) -> Any:
    return current_stream(device).record_event()


def _settle(event: Any) -> None:
    """Wait for what was launched before an event, which lets other threads run."""
    if event is not None:
        event.synchronize()
