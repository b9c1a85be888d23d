"""Comm over a torch process group. Only here are torch.distributed's collectives called."""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.accelerator import is_accelerator, synchronize
from pliant.comm.base import CommError, Limit, PeerTensors, ReduceOp, Work, require_contiguous, require_numel
from pliant.comm.batched import batched
from pliant.comm.liveness import HeartbeatMonitor
from pliant.comm.pending import PendingWorks
from pliant.comm.progress import Progress
from pliant.comm.torch_private import GroupMaker, backend_of, destroy, hang_up, is_destroyed

__all__ = ["ProcessGroupComm"]

_CPU = torch.device("cpu")
_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
# torch renames these two; the older names will go.
_all_gather_single: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009
_reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009
_BYTES_ONLY = {torch.int16, torch.float8_e4m3fn, torch.float8_e5m2}
"""Dtypes that Gloo does not know; where bytes only move they are sent as uint8."""


class ProcessGroupComm:
    """Comm over a torch process group, usually one that nothing else uses (`new_comm`).

    Args:
        group: The group; rank and size are read from it and never from the default world.
        limit: Longest wait for one communication.
        make_group: Makes smaller groups, for `split`.
        owns_group: Whether close() destroys the group.
        liveness: Heartbeats, by which a lost rank is named.
        owns_liveness: Whether close() ends it.
        progress: How far this rank has come in it; None for a group of all ranks.
        device: Device of the tensors.

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
        progress: Progress | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self.group, self._device = group, device
        self._limit, self._make_group, self._owns_group = limit, make_group, owns_group
        self._liveness, self._owns_liveness = liveness, owns_liveness
        self._rank, self._size = group.rank(), group.size()
        self.progress = progress or Progress(tuple(range(self._size)), self._size)
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
        require_numel("all_gather", out, x.numel() * self._size)
        out, x = _movable(out), _movable(x)
        return self._start("all_gather", x, lambda: _all_gather_single(out, x, self.group, async_op=True))

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp = "sum") -> Work:
        require_contiguous(out, x)
        require_numel("reduce_scatter", x, out.numel() * self._size)
        return self._start(
            "reduce_scatter", x, lambda: _reduce_scatter_single(out, x, _OPS[op], self.group, async_op=True)
        )

    def all_to_all(self, out: Tensor, x: Tensor) -> Work:
        require_contiguous(out, x)
        require_numel("all_to_all", out, x.numel())
        out, x = _movable(out), _movable(x)
        return self._start("all_to_all", x, lambda: dist.all_to_all_single(out, x, group=self.group, async_op=True))

    def exchange(self, sends: PeerTensors, receives: PeerTensors, *, patience_s: float | None = None) -> Work:
        require_contiguous(*(x for _, x in (*sends, *receives)))
        num_bytes = sum(x.nbytes for _, x in sends)
        size, group = f" of {num_bytes} bytes", self._open_group
        if group is None:
            raise self.failure("exchange", RuntimeError("this comm is closed"), size, 0.0)
        for peer, _ in sends:
            self.progress.sends(peer)
        for peer, _ in receives:
            self.progress.awaits(peer)
        beside = next((x.device for _, x in (*sends, *receives) if is_accelerator(x.device)), None)
        try:
            if beside is not None and backend_of(group, beside) != "gloo":
                works = batched(group, sends, receives)
            else:
                # Gloo starts each at once; without the batch's bookkeeping a message costs half as much.
                works = [group.recv([_movable(x)], peer, 0) for peer, x in receives]
                works += [group.send([_movable(x)], peer, 0) for peer, x in sends]
        except RuntimeError as error:
            raise self.given_up("exchange", error, size, 0.0) from error
        return PendingWorks(self, "exchange", works, num_bytes, patience_s, on_host=beside is None)

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
        self.all_reduce(torch.zeros(1, device=self._device)).wait()  # Gloo's own barrier takes no timeout of ours
        synchronize(self._device)

    def split(self, groups: Sequence[Sequence[int]]) -> "ProcessGroupComm | None":
        mine: ProcessGroupComm | None = None
        for ranks in groups:
            if self._rank in ranks:
                start_s = time.monotonic()
                try:
                    group = self._make_group(list(ranks))
                except RuntimeError as error:
                    raise self.given_up("split", error, "", time.monotonic() - start_s) from error
                mine = ProcessGroupComm(
                    group,
                    limit=self._limit,
                    make_group=lambda inner, outer=list(ranks): self._make_group(
                        outer if inner is None else [outer[i] for i in inner]
                    ),
                    owns_group=True,
                    liveness=self._liveness,
                    owns_liveness=False,
                    progress=Progress(tuple(self.progress.members[k] for k in ranks), self.progress.total),
                    device=self._device,
                )
                self._parts.add(mine)
        # Gloo connects all pairs of a group, and a rank is done when its own are. One that closed its connections now,
        # as a run that fails at its first step does, would break those of ranks that still connect.
        self.barrier()
        return mine

    def beside(self, factory: Callable[[Limit], GroupMaker], device: torch.device) -> "ProcessGroupComm":
        """Return a comm over another group of the same ranks, with the timeout and the heartbeats of this one."""
        make_group = factory(self._limit)
        other = ProcessGroupComm(
            make_group(None),
            limit=self._limit,
            make_group=make_group,
            owns_group=True,
            liveness=self._liveness,
            owns_liveness=False,
            device=device,
        )
        self._parts.add(other)
        return other

    @property
    def prefers_collectives(self) -> bool:
        group = self._open_group
        return is_accelerator(self._device) and group is not None and backend_of(group, self._device) != "gloo"

    @property
    def is_destroyed(self) -> bool:
        group = self._open_group
        return group is not None and is_destroyed(group)

    @property
    def _open_group(self) -> ProcessGroup | None:
        return getattr(self, "group", None)  # another thread may close this comm meanwhile

    def hang_up(self) -> None:
        self._hung_up = True
        for part in list(self._parts):
            part.hang_up()
        self.give_up()

    def give_up(self) -> None:
        """Close this group's connections after a failure, so that late ranks do not continue with only some others."""
        if (group := self._open_group) is not None and self._owns_group:
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
        del self.group  # a group of Gloo closes its connections with its last reference

    def given_up(self, op: str, error: BaseException, size: str, waited_s: float) -> CommError:
        """Make the report of a failed communication, and close the connections."""
        failure = self.failure(op, error, size, waited_s)
        self.give_up()
        return failure

    def failure(self, op: str, error: BaseException, size: str = "", waited_s: float | None = None) -> CommError:
        """Make the report of a failed communication: the rank that noticed, the operation, and lost ranks."""
        me, group, verdict = self.progress.members[self._rank], self._open_group, None
        if group is None or self._hung_up:
            who = "this rank has hung up meanwhile"
        elif self.is_destroyed:
            who = "destroy_process_group() was called while the run was open; call close() first"
        elif self._liveness is None:
            who = "which rank is lost is not known"
        else:
            verdict = self._liveness.blame(group.group_name, waited_s or 0.0, self.timeout_s)
            who = verdict.sentence(me, self.timeout_s)
        after = "" if waited_s is None else f" after {waited_s:.1f}s (timeout {self.timeout_s:g}s)"
        cause = str(error).splitlines()[0]
        return CommError(
            f"rank {me} of {self.progress.total}: {op}{size} failed{after}: {who}. Cause: {cause}",
            rank=me,
            op=op,
            lost=() if verdict is None else tuple(rank for rank in verdict.gone if rank != me),
        )

    def _start(self, op: str, x: Tensor, call: Callable[[], dist.Work | None]) -> Work:
        self.progress.collective()
        try:
            work = call()
        except (RuntimeError, ValueError, AttributeError) as error:
            if not isinstance(error, RuntimeError) and hasattr(self, "group") and not self.is_destroyed:
                raise  # not one of a group that was destroyed, or closed by another thread
            raise self.given_up(op, error, f" of {x.nbytes} bytes", 0.0) from error
        return PendingWorks(
            self, op, [work] if work is not None else [], x.nbytes, on_host=not is_accelerator(x.device)
        )


def _movable(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dtype in _BYTES_ONLY else x
