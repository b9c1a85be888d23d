"""Comm over a torch process group. Only here are torch.distributed's collectives called."""

import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.base import CommError, Limit, ReduceOp, Work, require_contiguous
from pliant.comm.liveness import HeartbeatMonitor
from pliant.comm.progress import Progress
from pliant.comm.torch_private import GroupMaker, destroy, hang_up, is_destroyed

__all__ = ["ProcessGroupComm"]

_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
# torch renames these two; the older names will go.
_all_gather_single: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009
_BYTES_ONLY = {torch.int16, torch.float8_e4m3fn, torch.float8_e5m2}
"""Dtypes that Gloo does not know; where bytes only move they travel as uint8."""


class _Pending:
    """Works in flight that are one communication to the caller."""

    def __init__(
        self,
        comm: "ProcessGroupComm",
        op: str,
        works: Sequence[dist.Work],
        num_bytes: int,
        patience_s: float | None = None,
    ) -> None:
        self._comm, self._op, self._works, self._num_bytes = comm, op, works, num_bytes
        self._limit_s = comm.timeout_s if patience_s is None else patience_s
        self._idle = patience_s is not None
        self._start_s = time.monotonic()

    def wait(self) -> None:
        waits = self._comm.progress.waits
        if not self._idle:
            waits.add(id(self))
        try:
            for work in self._works:
                work.wait(timedelta(seconds=self._limit_s))
        except RuntimeError as error:
            self._works = ()  # they hold connections, and whoever keeps the error would keep them
            failure = self._comm.failure(
                self._op, error, f" of {self._num_bytes} bytes", time.monotonic() - self._start_s
            )
            self._comm.give_up()
            raise failure from error
        finally:  # only now: who is asked meanwhile has waited, and is not to blame
            waits.discard(id(self))
        self._works = ()  # Gloo would wait for ever for what it has already handed over


class ProcessGroupComm:
    """Talks through a process group, usually one that nobody else uses (`new_comm`).

    Args:
        group: The group; rank and size are read from it and never from the default world.
        limit: Longest wait for one communication.
        make_group: How `split` makes smaller groups.
        owns_group: Whether close() destroys the group.
        liveness: Who is alive, to name the rank that is lost.
        owns_liveness: Whether close() ends it.
        part_of: How far this rank has come in the group that this one was split from.
        members: Which ranks of that one these are.

    """

    def __init__(
        self,
        group: ProcessGroup,
        *,
        limit: Limit,
        make_group: GroupMaker,
        owns_group: bool = False,
        liveness: HeartbeatMonitor | None = None,
        owns_liveness: bool = True,
        part_of: Progress | None = None,
        members: Sequence[int] = (),
    ) -> None:
        self.group = group
        self._limit = limit
        self._make_group = make_group
        self._owns_group = owns_group
        self._liveness = liveness
        self._owns_liveness = owns_liveness
        self._rank, self._size = group.rank(), group.size()
        if part_of is None:
            self.progress = Progress(tuple(range(self._size)), self._size)
        else:
            self.progress = Progress(tuple(part_of.members[rank] for rank in members), part_of.total)
        self._hung_up = False
        self._parts: weakref.WeakSet[ProcessGroupComm] = weakref.WeakSet()
        if liveness is not None:
            liveness.follow(group.group_name, self.progress)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def timeout_s(self) -> float:
        return self._limit.timeout_s

    def with_timeout(self, timeout_s: float) -> None:
        """Wait no longer than this for one communication from now on, also in what was split from this comm."""
        self._limit.timeout_s = timeout_s

    def all_reduce(self, x: Tensor, op: ReduceOp = "sum") -> Work:
        require_contiguous(x)
        return self._start("all_reduce", x, lambda: dist.all_reduce(x, _OPS[op], self.group, async_op=True))

    def all_gather(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        _require_numel("all_gather", out, x.numel() * self._size)
        out, x = _movable(out), _movable(x)
        return self._start("all_gather", x, lambda: _all_gather_single(out, x, self.group, async_op=True))

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        require_contiguous(out, x)
        _require_numel("reduce_scatter", x, out.numel() * self._size)
        return self._start(
            "reduce_scatter", x, lambda: _reduce_scatter_single(out, x, _OPS[op], self.group, async_op=True)
        )

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        _require_numel("all_to_all", out, x.numel())
        out, x = _movable(out), _movable(x)
        return self._start("all_to_all", x, lambda: dist.all_to_all_single(out, x, group=self.group, async_op=True))

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor]],
        *,
        patience_s: float | None = None,
    ) -> Work:
        require_contiguous(*(x for _, x in (*sends, *receives)))
        num_bytes = sum(x.nbytes for _, x in sends)
        group: ProcessGroup | None = getattr(self, "group", None)  # another thread may close this comm meanwhile
        if group is None:
            raise self.failure("exchange", RuntimeError("this comm is closed"), f" of {num_bytes} bytes", 0.0)
        for peer, _ in sends:
            self.progress.sends(peer)
        for peer, _ in receives:
            self.progress.awaits(peer)
        try:
            if group.name() == "nccl":
                works = self._batch(sends, receives)
            else:
                # Gloo starts each at once; without the batch's bookkeeping a message costs half as much.
                works = [group.recv([_movable(x)], peer, 0) for peer, x in receives]
                works += [group.send([_movable(x)], peer, 0) for peer, x in sends]
        except RuntimeError as error:
            raise self._given_up("exchange", error, num_bytes) from error
        return _Pending(self, "exchange", works, num_bytes, patience_s)

    def broadcast(self, x: Tensor, root: int) -> Work:
        require_contiguous(x)
        moved = _movable(x)
        return self._start(
            "broadcast", x, lambda: dist.broadcast(moved, group=self.group, group_src=root, async_op=True)
        )

    def reduce(self, x: Tensor, root: int) -> Work:
        require_contiguous(x)
        return self._start("reduce", x, lambda: dist.reduce(x, group=self.group, group_dst=root, async_op=True))

    def barrier(self) -> None:
        token = torch.zeros(1)  # Gloo's own barrier takes no timeout of ours
        if self.group.name() == "nccl":
            token = token.cuda()
        self.all_reduce(token).wait()

    def split(self, groups: Sequence[Sequence[int]]) -> "ProcessGroupComm | None":
        mine: ProcessGroupComm | None = None
        for ranks in groups:
            if self._rank in ranks:
                start_s = time.monotonic()
                try:
                    group = self._make_group(list(ranks))
                except RuntimeError as error:
                    failure = self.failure("split", error, waited_s=time.monotonic() - start_s)
                    self.give_up()
                    raise failure from error
                mine = ProcessGroupComm(
                    group,
                    limit=self._limit,
                    make_group=lambda inner, outer=list(ranks): self._make_group(
                        outer if inner is None else [outer[i] for i in inner]
                    ),
                    owns_group=True,
                    liveness=self._liveness,
                    owns_liveness=False,
                    part_of=self.progress,
                    members=ranks,
                )
                self._parts.add(mine)
        # Gloo connects all pairs of a group, and a rank is done when its own are. One that were to hang up now, as a
        # run that fails at its first step does, would break the connections of those that are still at it.
        self.barrier()
        return mine

    @property
    def is_destroyed(self) -> bool:
        group: ProcessGroup | None = getattr(self, "group", None)  # another thread may close this comm meanwhile
        return group is not None and is_destroyed(group)

    def hang_up(self) -> None:
        self._hung_up = True
        for part in list(self._parts):
            part.hang_up()
        self.give_up()

    def give_up(self) -> None:
        """Break this group's connections after a failure: who comes late must not go on with half of the others."""
        group: ProcessGroup | None = getattr(self, "group", None)
        if group is not None and self._owns_group:
            hang_up(group)

    def close(self) -> None:
        if not self._owns_group:
            return
        self._owns_group = False
        for part in list(self._parts):
            part.close()
        if self._liveness is not None and self._owns_liveness:
            self._liveness.close()
        destroy(self.group)
        del self.group  # a group of Gloo hangs up when nobody holds it

    def failure(self, op: str, error: BaseException, size: str = "", waited_s: float | None = None) -> CommError:
        """Make the report of a failed communication: who noticed, what it was, who is gone."""
        me, waited = self.progress.members[self._rank], 0.0 if waited_s is None else waited_s
        after = "" if waited_s is None else f" after {waited_s:.1f}s (timeout {self.timeout_s:g}s)"
        group: ProcessGroup | None = getattr(self, "group", None)
        verdict = None
        if group is None or self._hung_up:
            who = "this rank has hung up meanwhile"
        elif self.is_destroyed:
            who = "destroy_process_group() was called while the run was open; call close() first"
        elif self._liveness is None:
            who = "which rank is lost is not known"
        else:
            verdict = self._liveness.blame(group.group_name, waited, self.timeout_s)
            who = verdict.sentence(me, self.timeout_s)
        return CommError(
            f"rank {me} of {self.progress.total}: {op}{size} failed{after}: {who}. Cause: {str(error).splitlines()[0]}",
            rank=me,
            op=op,
            lost=() if verdict is None else tuple(rank for rank in verdict.gone if rank != me),
        )

    def _given_up(self, op: str, error: BaseException, num_bytes: int) -> CommError:
        """Make the report of a communication that could not begin, and hang up as after one that failed."""
        failure = self.failure(op, error, f" of {num_bytes} bytes", 0.0)
        self.give_up()
        return failure

    def _start(self, op: str, x: Tensor, call: Callable[[], dist.Work | None]) -> Work:
        self.progress.collective()
        try:
            work = call()
        except (RuntimeError, ValueError, AttributeError) as error:
            if not isinstance(error, RuntimeError) and hasattr(self, "group") and not self.is_destroyed:
                raise  # not one of a group that was destroyed, or closed by another thread
            raise self._given_up(op, error, x.nbytes) from error
        return _Pending(self, op, [work] if work is not None else [], x.nbytes)

    def _batch(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> Sequence[dist.Work]:
        operations = [dist.P2POp(dist.irecv, x, group=self.group, group_peer=peer) for peer, x in receives]
        operations += [dist.P2POp(dist.isend, x, group=self.group, group_peer=peer) for peer, x in sends]
        return dist.batch_isend_irecv(operations) if operations else []


def _movable(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dtype in _BYTES_ONLY else x


def _require_numel(op: str, x: Tensor, wanted: int) -> None:
    if x.numel() != wanted:
        raise ValueError(f"{op} needs a tensor of {wanted} elements here, but got {x.numel()}.")
