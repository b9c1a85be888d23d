"""A comm of two groups of the same ranks: one carries tensors of an accelerator, the other those of the host."""

from collections.abc import Sequence

from torch import Tensor

from pliant.accelerator import is_accelerator
from pliant.comm.base import Comm, PeerTensors, ReduceOp, Work
from pliant.comm.wrapped import WrappedComm

__all__ = ["ByDeviceComm"]


class ByDeviceComm(WrappedComm):
    """Chooses the group of each call by the device of its tensors, as torch does in a group of several backends.

    Each group has an order of its own. Control messages, such as what ranks agree on, are tensors of the host: they
    need not wait for what the accelerator has to do, and where its backend carries none of the host, they still go.

    Args:
        device: Comm that carries tensors of the accelerator, such as over NCCL.
        host: Comm of the same ranks that carries tensors of the host, such as over Gloo.

    """

    def __init__(self, device: Comm, host: Comm) -> None:
        super().__init__(device)
        self._host = host

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._for(x).all_reduce(x, op)

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        return self._for(x).all_gather(out, x)

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._for(x).reduce_scatter(out, x, op)

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        return self._for(x).all_to_all(out, x)

    def exchange(
        self, sends: PeerTensors, receives: PeerTensors, *, turn: int = 0, tag: int = 0, patience_s: float | None = None
    ) -> Work:
        comms = {self._for(x) for _, x in (*sends, *receives)} or {self._host}
        if len(comms) > 1:
            raise ValueError(
                "messages of one exchange lie partly on the host and partly on the device; use two exchanges."
            )
        return comms.pop().exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._for(x).broadcast(x, root)

    def reduce(self, x: Tensor, root: int) -> Work:
        return self._for(x).reduce(x, root)

    def barrier(self) -> None:
        self._host.barrier()

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> "ByDeviceComm | None":
        host, device = self._host.split(groups, connections), self._comm.split(groups)
        return None if host is None or device is None else ByDeviceComm(device, host)

    @property
    def is_destroyed(self) -> bool:
        return self._host.is_destroyed or self._comm.is_destroyed

    def hang_up(self) -> None:
        self._host.hang_up()
        self._comm.hang_up()

    def close(self) -> None:
        self._comm.close()
        self._host.close()

    def _for(self, x: Tensor) -> Comm:
        return self._comm if is_accelerator(x.device) else self._host
