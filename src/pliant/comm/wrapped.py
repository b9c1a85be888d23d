"""Base of comms that do something around another one."""

from collections.abc import Sequence

from torch import Tensor

from pliant.comm.base import Comm, PeerTensors, ReduceOp, Work

__all__ = ["WrappedComm"]


class WrappedComm:
    """Hands every call on to another comm, unless a subclass does something else.

    Args:
        comm: The other one.

    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    @property
    def timeout_s(self) -> float:
        return self._comm.timeout_s

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._comm.all_reduce(x, op)

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        return self._comm.all_gather(out, x)

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._comm.reduce_scatter(out, x, op)

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        return self._comm.all_to_all(out, x)

    def exchange(
        self, sends: PeerTensors, receives: PeerTensors, *, turn: int = 0, tag: int = 0, patience_s: float | None = None
    ) -> Work:
        return self._comm.exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)

    def expect(self, receives: PeerTensors, *, turn: int = 0, tag: int = 0) -> Work:
        return self._comm.expect(receives, turn=turn, tag=tag)

    def new_tag(self) -> int:
        return self._comm.new_tag()

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._comm.broadcast(x, root)

    def reduce(self, x: Tensor, root: int) -> Work:
        return self._comm.reduce(x, root)

    def barrier(self) -> None:
        self._comm.barrier()

    def split(self, groups: Sequence[Sequence[int]], connections: int = 0) -> Comm | None:
        return self._comm.split(groups, connections)

    @property
    def connections(self) -> int:
        return self._comm.connections

    @property
    def prefers_collectives(self) -> bool:
        return self._comm.prefers_collectives

    @property
    def is_in_order(self) -> bool:
        return self._comm.is_in_order

    @property
    def is_destroyed(self) -> bool:
        return self._comm.is_destroyed

    def hang_up(self) -> None:
        self._comm.hang_up()

    def close(self) -> None:
        self._comm.close()
