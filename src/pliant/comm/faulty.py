"""A comm that fails on purpose: delay, drop or raise at the n-th call."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from pliant.comm.base import Comm, CommError, PeerTensors, ReduceOp, Work
from pliant.comm.wrapped import WrappedComm

__all__ = ["FaultyComm"]


@dataclass(frozen=True, kw_only=True)
class _Fault:
    op: str
    call: int
    act: Callable[[], bool]
    """Does the damage; returns whether the call shall still happen."""


class _Never:
    """A communication that this rank never took part in."""

    def wait(self) -> None:
        pass


class FaultyComm(WrappedComm):
    """Wraps a comm with faults: ``FaultyComm(comm).delay("all_reduce", 2, delay_s=0.1).drop("broadcast", 1)``.

    Calls are counted from 1, per operation; ``"*"`` counts all operations together. A dropped call does nothing on
    this rank, so the others wait for it until their timeout.
    """

    def __init__(self, comm: Comm) -> None:
        super().__init__(comm)
        self._faults: list[_Fault] = []
        self._counts: dict[str, int] = {}

    def delay(self, op: str, call: int, *, delay_s: float) -> Self:
        """Make the call start later."""
        return self._add(op, call, lambda: time.sleep(delay_s) is None)

    def drop(self, op: str, call: int) -> Self:
        """Leave the call out on this rank."""
        return self._add(op, call, lambda: False)

    def fail(self, op: str, call: int) -> Self:
        """Raise CommError at the call."""

        def act() -> bool:
            raise CommError(f"rank {self.rank}: {op} was made to fail at call {call}", rank=self.rank, op=op)

        return self._add(op, call, act)

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._comm.all_reduce(x, op) if self._passes("all_reduce") else _Never()

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        return self._comm.all_gather(out, x) if self._passes("all_gather") else _Never()

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        return self._comm.reduce_scatter(out, x, op) if self._passes("reduce_scatter") else _Never()

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        return self._comm.all_to_all(out, x) if self._passes("all_to_all") else _Never()

    def exchange(
        self, sends: PeerTensors, receives: PeerTensors, *, turn: int = 0, tag: int = 0, patience_s: float | None = None
    ) -> Work:
        if not self._passes("exchange"):
            return _Never()
        return self._comm.exchange(sends, receives, turn=turn, tag=tag, patience_s=patience_s)

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._comm.broadcast(x, root) if self._passes("broadcast") else _Never()

    def reduce(self, x: Tensor, root: int) -> Work:
        return self._comm.reduce(x, root) if self._passes("reduce") else _Never()

    def barrier(self) -> None:
        if self._passes("barrier"):
            self._comm.barrier()

    def _add(self, op: str, call: int, act: Callable[[], bool]) -> Self:
        self._faults.append(_Fault(op=op, call=call, act=act))
        return self

    def _passes(self, op: str) -> bool:
        for name in (op, "*"):
            self._counts[name] = self._counts.get(name, 0) + 1
        due = [f for f in self._faults if f.op in (op, "*") and f.call == self._counts[f.op]]
        return all([fault.act() for fault in due])  # noqa: C419  every fault that is due strikes
